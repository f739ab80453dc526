//! Messages that cannot be read, as records of topic `dead-letters`.

use rdkafka::{
    Message as _,
    error::KafkaResult,
    message::{Header, OwnedHeaders, OwnedMessage},
    producer::{DeliveryFuture, FutureProducer, FutureRecord},
};
use schemas::{message::DecodeError, topic};
use service::kafka::{Context, KafkaConfig};

/// The largest record that the topic takes: more than any message, because headers come on top.
const MAX_BYTES: &str = "2097152";

/// A message that cannot be read, and why.
pub(super) struct DeadLetter<'a> {
    message: &'a OwnedMessage,
    /// The record's key, so that a second copy can be told.
    position: String,
    reason: String,
    schema: &'static str,
}

impl<'a> DeadLetter<'a> {
    /// Wraps a message; `schema` is what its bytes should have been.
    pub(super) fn new(message: &'a OwnedMessage, error: &DecodeError, schema: &'static str) -> Self {
        let position = format!("{}/{}/{}", message.topic(), message.partition(), message.offset());
        tracing::warn!(position, schema, "dead letter at {position}: {error}");
        metrics::counter!("hopline_dead_letters_total", "schema" => schema).increment(1);
        Self { message, position, reason: error.to_string(), schema }
    }

    /// Where the message came from, its key, and why it is here.
    fn headers(&self) -> OwnedHeaders {
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

/// Writes dead letters.
pub(super) struct DeadLetters {
    topic: String,
    producer: FutureProducer<Context>,
}

impl DeadLetters {
    /// Makes a producer.
    ///
    /// # Errors
    /// When librdkafka refuses the settings.
    pub(super) fn new(kafka: &KafkaConfig) -> KafkaResult<Self> {
        let producer = kafka
            .client_config("dispatcher-dead-letters")
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.max.bytes", MAX_BYTES)
            .create_with_context(Context::default())?;
        Ok(Self { topic: kafka.topic(topic::DEAD_LETTERS.name), producer })
    }

    /// Writes dead letters and waits until Kafka has them all.
    pub(super) async fn write(&self, letters: &[DeadLetter<'_>]) -> KafkaResult<()> {
        let send = |letter: &DeadLetter<'_>| {
            let record = FutureRecord::to(&self.topic)
                .key(&letter.position)
                .payload(letter.message.payload().unwrap_or_default())
                .headers(letter.headers());
            self.producer.send_result(record).map_err(|(error, _)| error)
        };
        let written = letters.iter().map(send).collect::<KafkaResult<Vec<DeliveryFuture>>>()?;
        for one in written {
            // Without an answer the producer is gone.
            one.await.map_err(|_| rdkafka::error::KafkaError::Canceled)?.map_err(|(error, _)| error)?;
        }
        Ok(())
    }
}
