//! Messages that cannot be read, as records of topic `dead-letters`.

use rdkafka::{
    Message as _,
    message::{Header, OwnedHeaders, OwnedMessage},
};
use schemas::message::DecodeError;

/// The largest record that the topic takes: more than any message, because headers come on top.
pub(crate) const MAX_BYTES: &str = "2097152";

/// A message that cannot be read, and why.
pub(crate) struct DeadLetter<'a> {
    message: &'a OwnedMessage,
    position: String,
    reason: String,
    schema: &'static str,
}

impl<'a> DeadLetter<'a> {
    /// Wraps a message; `schema` is what its bytes should have been.
    pub(crate) fn new(message: &'a OwnedMessage, error: &DecodeError, schema: &'static str) -> Self {
        let position = format!("{}/{}/{}", message.topic(), message.partition(), message.offset());
        tracing::warn!(position, schema, "dead letter at {position}: {error}");
        metrics::counter!("hopline_dead_letters_total", "schema" => schema).increment(1);
        Self { message, position, reason: error.to_string(), schema }
    }

    /// The record's key: the message's position, so that a second copy can be told.
    pub(crate) fn key(&self) -> &str {
        &self.position
    }

    /// The original bytes.
    pub(crate) fn payload(&self) -> &[u8] {
        self.message.payload().unwrap_or_default()
    }

    /// Where the message came from, its key, and why it is here.
    pub(crate) fn headers(&self) -> OwnedHeaders {
        let (partition, offset) = (self.message.partition().to_string(), self.message.offset().to_string());
        let mut headers = OwnedHeaders::new();
        for (key, value) in [
            ("topic", self.message.topic()),
            ("partition", &partition),
            ("offset", &offset),
            ("reason", &self.reason),
            ("schema", self.schema),
        ] {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        headers.insert(Header { key: "key", value: self.message.key() })
    }
}
