//! One dead letter.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use rdkafka::Message as _;
use rdkafka::message::BorrowedMessage;
use schemas::message::DeadLetter;
use serde::{Serialize, Serializer};

use crate::pipeline::dead_letter;

/// Where a record is in a topic that is known: partition and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) partition: i32,
    pub(super) offset: u64,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = text.split_once('/').and_then(|(partition, offset)| {
            Some(Self { partition: partition.parse().ok()?, offset: offset.parse().ok()? })
        });
        place.ok_or_else(|| "expected <partition>/<offset>, such as 0/17".to_owned())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.partition, self.offset)
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A message that nobody could read.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Letter {
    /// Its place in the topic of dead letters.
    pub(super) place: Place,
    /// When it was written there.
    pub(super) written_at: Option<DateTime<Utc>>,
    /// The topic that it came from, with the deployment's prefix.
    pub(super) topic: String,
    /// Where it was there; none if the headers do not say.
    pub(super) source: Option<Place>,
    pub(super) reason: String,
    /// What its bytes should have been.
    pub(super) schema: String,
    /// The original key.
    #[serde(serialize_with = "bytes", skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<Vec<u8>>,
    pub(super) payload_bytes: usize,
    #[serde(serialize_with = "bytes", skip_serializing_if = "Option::is_none")]
    pub(super) payload: Option<Vec<u8>>,
}

impl Letter {
    pub(super) fn read(message: &BorrowedMessage<'_>) -> Self {
        let DeadLetter { topic, position, reason, schema, key, .. } = dead_letter::read(message);
        let payload = message.payload().unwrap_or_default().to_vec();
        // Kafka's offsets are never negative.
        let offset = u64::try_from(message.offset()).unwrap_or(0);
        Self {
            place: Place { partition: message.partition(), offset },
            written_at: message.timestamp().to_millis().and_then(DateTime::from_timestamp_millis),
            topic,
            source: position.map(|(partition, offset)| Place { partition, offset }),
            reason,
            schema,
            key,
            payload_bytes: payload.len(),
            payload: Some(payload),
        }
    }

    pub(super) fn without_payload(self) -> Self {
        Self { payload: None, ..self }
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, written_at, topic, source, reason, payload_bytes, payload, .. } = self;
        let written_at = written_at.map(schemas::time::text).unwrap_or_default();
        let source = source.map_or_else(String::new, |source| format!("/{source}"));
        write!(f, "{place}  {written_at}  {topic}{source}  {payload_bytes} bytes  {reason}")?;
        match payload {
            Some(payload) => write!(f, "\n{}", readable(payload)),
            None => Ok(()),
        }
    }
}

/// Shows bytes as text where they are, and the others as `\x..`.
fn readable(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes.utf8_chunks() {
        shown.push_str(chunk.valid());
        for byte in chunk.invalid() {
            shown += &format!("\\x{byte:02x}");
        }
    }
    shown
}

fn bytes<S: Serializer>(value: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.serialize_str(&readable(value)),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_round_trips() {
        let place: Place = "3/17".parse().unwrap();
        assert_eq!(place, Place { partition: 3, offset: 17 });
        assert_eq!(place.to_string(), "3/17");
        for bad in ["", "17", "a/b", "1/", "1/-2"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn invalid_utf8_is_shown_escaped() {
        assert_eq!(readable(b"{\"a\":\xff\xfe}\xc3\xa9"), "{\"a\":\\xff\\xfe}é");
    }
}
