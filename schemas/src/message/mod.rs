//! Messages: JSON objects with a version `v`, readable with any Kafka tool.
//!
//! Changes within a version are additive: unknown fields are ignored, new ones are optional. A golden file of
//! every version ever written stays in `fixtures/`, and a test reads each. Anything else is a new version.

mod again;
mod click;
mod conversion;
mod dead_letter;
mod delivery;
mod link;
mod link_event;
mod text;

pub use again::mark_again;
pub use click::{Class, Click};
pub use conversion::Conversion;
pub use dead_letter::DeadLetter;
pub use delivery::{MAX_ATTEMPTS, delivery_id};
pub use link::{DeletedLink, EdgeToken, ForwardQuery, Link, LinkRecord};
pub use link_event::{LinkEvent, LinkEventKind};
pub use text::Text;

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

/// Why bytes are not a message: a dead letter either way, but an unknown version can be tried again after an upgrade.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not the JSON object they should be.
    #[error("malformed message: {0}")]
    Malformed(#[source] serde_json::Error),
    /// The object says it is of a version that this build does not know.
    #[error("unknown message version {0}")]
    UnknownVersion(u64),
}

/// A type that travels over a topic.
pub trait Message: Serialize + DeserializeOwned {
    /// The version that this build writes.
    const VERSION: u32;

    /// The bytes for the topic.
    fn encode(&self) -> Vec<u8> {
        // Messages are structs with string keys, and writing to memory does not fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the bytes of a topic.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        read(bytes, Self::VERSION)
    }
}

/// Reads a message of a version, which may borrow from its bytes.
fn read<'a, M: Deserialize<'a>>(bytes: &'a [u8], version: u32) -> Result<M, DecodeError> {
    #[derive(Deserialize)]
    struct Envelope {
        v: u64,
    }
    // Once for all of it: text by text takes longer.
    let read = match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        // Says where in the message the fault is.
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

    /// Reads a golden file, and shows that writing it again gives the same bytes.
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
        let deleted = golden::<LinkRecord>(include_str!("../../fixtures/link.v1.deleted.json"));
        assert!(matches!(deleted, LinkRecord::Deleted(_)));
    }

    #[test]
    fn an_unknown_version_is_told_from_a_malformed_message() {
        let later = include_str!("../../fixtures/click.v1.json").replacen("\"v\":1", "\"v\":2", 1);
        assert!(matches!(Click::decode(later.as_bytes()), Err(DecodeError::UnknownVersion(2))));
        for bytes in [&b""[..], b"{", b"null", b"{\"v\":1}", b"{\"v\":\"1\"}", b"\xff\xfe"] {
            assert!(matches!(Click::decode(bytes), Err(DecodeError::Malformed(_))), "{bytes:?}");
        }
    }

    #[test]
    fn a_click_that_borrows_its_texts_is_the_same_click() {
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
    fn an_unknown_field_is_ignored_because_a_later_build_may_add_it() {
        let more = include_str!("../../fixtures/click.v1.json").replacen("{", "{\"added_later\":[1],", 1);
        assert!(Click::decode(more.as_bytes()).is_ok());
    }
}
