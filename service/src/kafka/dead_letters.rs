//! Writing what nobody could read to a topic where an operator can read it, and send it again.

use std::fmt;

use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{Context, KafkaConfig};

/// The largest record that the topic takes: more than any message, because headers come on top.
const MAX_BYTES: &str = "2097152";

/// Writes dead letters.
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
    /// Makes the producer, without connecting; `topic` is the full name, `client` what the brokers call it.
    ///
    /// # Errors
    /// When librdkafka refuses the settings.
    pub fn new(kafka: &KafkaConfig, topic: String, client: &str) -> KafkaResult<Self> {
        let producer = kafka
            .client_config(client)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.max.bytes", MAX_BYTES)
            .create_with_context(Context::default())?;
        Ok(Self { producer, topic })
    }

    /// Writes one, and waits until Kafka has it; after a crash the same one may be written again.
    ///
    /// # Errors
    /// When Kafka did not take it.
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
        // Without an answer the producer is gone.
        sent.await.map_err(|_| KafkaError::Canceled)?.map_err(|(error, _)| error)?;
        Ok(())
    }
}
