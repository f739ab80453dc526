//! Invalid messages, which are written to topic `dead-letters`.

use rdkafka::Message as _;
use rdkafka::error::KafkaResult;
use rdkafka::message::OwnedMessage;
use schemas::message::{DeadLetter, DecodeError};
use service::kafka::DeadLetters;

/// An invalid message and its description.
pub(super) struct Unreadable<'a> {
    message: &'a OwnedMessage,
    letter: DeadLetter,
}

impl<'a> Unreadable<'a> {
    /// Describes a message; `schema` is the one that its bytes do not match.
    pub(super) fn new(message: &'a OwnedMessage, error: &DecodeError, schema: &'static str) -> Self {
        let letter = DeadLetter {
            topic: message.topic().to_owned(),
            // Kafka's offsets are never negative.
            position: Some((message.partition(), u64::try_from(message.offset()).unwrap_or(0))),
            log: None,
            reason: error.to_string(),
            schema: schema.to_owned(),
            key: message.key().map(<[u8]>::to_vec),
        };
        let position = letter.record_key();
        tracing::warn!(position, schema, "dead letter at {position}: {error}");
        metrics::counter!("hopline_dead_letters_total", "schema" => schema).increment(1);
        Self { message, letter }
    }

    /// Writes it as a dead letter, and returns when Kafka has confirmed it.
    pub(super) async fn write(&self, dead_letters: &DeadLetters) -> KafkaResult<()> {
        let Self { message, letter } = self;
        let value = message.payload().unwrap_or_default();
        dead_letters.write(&letter.record_key(), letter.headers(), value).await
    }
}
