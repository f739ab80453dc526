//! Messages on topics: JSON objects with a version `v`.
//!
//! Changes within a version are additive: readers ignore unknown fields, and new fields are optional. Any other change
//! needs a new version. `fixtures/` keeps an example of every version ever written, and a test reads each.

mod again;
mod click;
mod conversion;
mod dead_letter;
mod delivery;
mod link;
mod link_event;

pub use again::mark_again;
pub use click::{Class, Click};
pub use conversion::Conversion;
pub use dead_letter::DeadLetter;
pub use delivery::{MAX_ATTEMPTS, delivery_id};
pub use link::{DeletedLink, EdgeToken, ForwardQuery, Link, LinkRecord};
pub use link_event::{LinkEvent, LinkEventKind};

pub use crate::text::Text;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The field `v` of a message whose current version is `N`; any other number does not deserialize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Version<const N: u32>;

impl<const N: u32> Serialize for Version<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(N)
    }
}

impl<'de, const N: u32> Deserialize<'de> for Version<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let version = u32::deserialize(deserializer)?;
        if version == N {
            Ok(Self)
        } else {
            Err(D::Error::custom(format_args!("version {version}, expected {N}")))
        }
    }
}

/// Why bytes cannot be read as a message. Both cases become dead letters; after an upgrade, those with an unknown
/// version can be resubmitted.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not the expected JSON object.
    #[error("malformed message: {0}")]
    Malformed(#[source] serde_json::Error),
    /// The object has a version that this build does not know.
    #[error("unknown message version {0}")]
    UnknownVersion(u64),
}

/// A type that is sent over a topic.
pub trait Message: Serialize + DeserializeOwned {
    /// The version that this build writes.
    const VERSION: u32;

    /// Returns the record's value.
    fn encode(&self) -> Vec<u8> {
        // Does not fail: messages are structs with string keys, written to memory.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a record's value.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        read(bytes, Self::VERSION)
    }
}

/// Reads a message that may borrow from its bytes.
fn read<'a, M: Deserialize<'a>>(bytes: &'a [u8], version: u32) -> Result<M, DecodeError> {
    #[derive(Deserialize)]
    struct Envelope {
        v: u64,
    }
    // Validating UTF-8 once for the whole message is faster than string by string.
    let read = match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        // For an error with the position of the invalid byte.
        Err(_) => serde_json::from_slice(bytes),
    };
    read.map_err(|error| match serde_json::from_slice::<Envelope>(bytes) {
        Ok(Envelope { v }) if v != u64::from(version) => DecodeError::UnknownVersion(v),
        _ => DecodeError::Malformed(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an example and checks that encoding it gives the same bytes.
    fn golden<M: Message>(fixture: &str) -> M {
        let message = M::decode(fixture.trim_end().as_bytes()).unwrap();
        assert_eq!(String::from_utf8(message.encode()).unwrap(), fixture.trim_end());
        message
    }

    #[test]
    fn every_version_ever_written_can_be_read() {
        golden::<Click>(include_str!("../../fixtures/click.v1.json"));
        golden::<Click>(include_str!("../../fixtures/click.v1.bare.json"));
        golden::<Conversion>(include_str!("../../fixtures/conversion.v1.json"));
        golden::<LinkEvent>(include_str!("../../fixtures/link_event.v1.json"));
        golden::<EdgeToken>(include_str!("../../fixtures/edge_token.v1.json"));
        let live = golden::<LinkRecord>(include_str!("../../fixtures/link.v1.json"));
        assert!(matches!(live, LinkRecord::Live(_)));
        for deleted in [
            include_str!("../../fixtures/link.v1.deleted.json"),
            include_str!("../../fixtures/link.v1.deleted.bare.json"),
        ] {
            assert!(matches!(golden::<LinkRecord>(deleted), LinkRecord::Deleted(_)));
        }
    }

    #[test]
    fn unknown_versions_and_malformed_messages_are_distinct_errors() {
        let later = include_str!("../../fixtures/click.v1.json").replacen("\"v\":1", "\"v\":2", 1);
        assert!(matches!(Click::decode(later.as_bytes()), Err(DecodeError::UnknownVersion(2))));
        for bytes in [&b""[..], b"{", b"null", b"{\"v\":1}", b"{\"v\":\"1\"}", b"\xff\xfe"] {
            assert!(matches!(Click::decode(bytes), Err(DecodeError::Malformed(_))), "{bytes:?}");
        }
    }

    #[test]
    fn a_borrowed_click_equals_an_owned_one() {
        let escaped = include_str!("../../fixtures/click.v1.json").replacen("spring", r"spr\u0069ng\n", 1);
        for json in [
            include_str!("../../fixtures/click.v1.json"),
            include_str!("../../fixtures/click.v1.bare.json"),
            &escaped,
        ] {
            let owned = Click::decode(json.as_bytes()).unwrap();
            assert_eq!(Click::borrow(json.as_bytes()).unwrap().to_owned(), owned);
        }
        let later = include_str!("../../fixtures/click.v1.json").replacen("\"v\":1", "\"v\":2", 1);
        assert!(matches!(Click::borrow(later.as_bytes()), Err(DecodeError::UnknownVersion(2))));
        assert!(matches!(Click::borrow(b"{"), Err(DecodeError::Malformed(_))));
    }

    #[test]
    fn an_unknown_field_is_ignored() {
        let more = include_str!("../../fixtures/click.v1.json").replacen("{", "{\"added_later\":[1],", 1);
        assert!(Click::decode(more.as_bytes()).is_ok());
    }
}
