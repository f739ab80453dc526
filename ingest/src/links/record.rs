//! What applying a record of topic `links` returns.

use schemas::id::{EdgeTokenId, LinkId};
use schemas::message::DecodeError;

/// The effect of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The record changed something.
    Changed,
    /// The record is not newer than the known state and is ignored.
    Older,
}

/// Why a record cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The value is not a link, a deleted link or an edge token.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The record has no value. Hopline never writes one: a deleted link is a record with a value.
    #[error("the record has no value")]
    NoValue,
    /// The destination is not a URL.
    #[error("destination of {link} is not a URL")]
    Destination {
        /// The link.
        link: LinkId,
        /// The parser's error.
        source: url::ParseError,
    },
    /// The status does not redirect.
    #[error("redirect status of {link} is {status}, expected 301, 302, 307 or 308")]
    Status {
        /// The link.
        link: LinkId,
        /// The status.
        status: u16,
    },
    /// The slug is longer than 65535 bytes.
    #[error("slug of {link} is too long")]
    Slug {
        /// The link.
        link: LinkId,
    },
    /// The digest of an edge token is not a SHA-256 in hex.
    #[error("digest of {0} is not 64 hex digits")]
    Token(EdgeTokenId),
}
