//! Publishes unreadable records to a dead-letter topic, from which an operator can resubmit them.

use std::fmt;

use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{Context, KafkaConfig};

/// Size limit of a record, equal to the topic's: above any other message, because headers come on top.
const MAX_BYTES: &str = "2097152";

/// A producer of dead letters.
#[derive(Clone)]
pub struct DeadLetters {
    producer: FutureProducer<Context>,
    topic: String,
}

impl fmt::Debug for DeadLetters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DeadLetters").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl DeadLetters {
    /// Creates the producer without connecting; `topic` is the full name.
    ///
    /// # Errors
    /// When librdkafka rejects the settings.
    pub fn new(kafka: &KafkaConfig, topic: String, client_id: &str) -> KafkaResult<Self> {
        let producer = kafka
            .client_config(client_id)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.max.bytes", MAX_BYTES)
            .create_with_context(Context::default())?;
        Ok(Self { producer, topic })
    }

    /// Publishes a dead letter and waits for Kafka's acknowledgement.
    ///
    /// # Errors
    /// When Kafka did not acknowledge it.
    pub async fn write(
        &self,
        key: &str,
        headers: Vec<(&'static str, Option<Vec<u8>>)>,
        message: &[u8],
    ) -> KafkaResult<()> {
        let headers = headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: value.as_ref() })
        });
        let record = FutureRecord::to(&self.topic).key(key).payload(message).headers(headers);
        let sent = self.producer.send_result(record).map_err(|(error, _)| error)?;
        // The producer was dropped without an answer.
        sent.await.map_err(|_| KafkaError::Canceled)?.map_err(|(error, _)| error)?;
        Ok(())
    }
}
