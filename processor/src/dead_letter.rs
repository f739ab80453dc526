//! Messages that nobody could read, kept where an operator can read them and send them again.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use schemas::topic::{self, Topic};
use service::kafka::{Context, KafkaConfig};

use crate::decode::{Poison, Record};

/// The header with the topic's generation.
pub(crate) const GENERATION: &str = "generation";

/// A message that is not what its topic holds, with its original bytes.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The topic's generation, where the topic has several; see [`schemas::row::source`].
    pub generation: Option<u16>,
    /// Offset within the partition.
    pub offset: u64,
    /// The broker's clock, if it gave a time.
    pub broker_ts: Option<DateTime<Utc>>,
    /// Why it could not be read.
    pub reason: String,
    /// The original key.
    pub key: Option<Vec<u8>>,
    /// The original value.
    pub payload: Vec<u8>,
}

impl DeadLetter {
    /// Wraps a record and the reason why it could not be read.
    pub fn new(record: &Record<'_>, poison: &Poison) -> Self {
        let Record { offset, broker_ts, key, payload } = *record;
        Self {
            generation: None,
            offset,
            broker_ts,
            reason: poison.to_string(),
            key: key.map(<[u8]>::to_vec),
            payload: payload.unwrap_or_default().to_vec(),
        }
    }

    /// Says of which generation of its topic the letter is.
    #[must_use]
    pub fn of(self, generation: u16) -> Self {
        Self { generation: Some(generation), ..self }
    }
}

/// Writes what was read from one topic to the topic of dead letters.
#[derive(Clone)]
pub struct DeadLetters {
    producer: FutureProducer<Context>,
    topic: String,
    source_topic: String,
    /// What the reader expected the bytes to be.
    schema: &'static str,
}

impl fmt::Debug for DeadLetters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DeadLetters").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl DeadLetters {
    /// Makes the producer, without connecting; `source` was read, and expected to hold `schema`.
    ///
    /// # Errors
    /// When librdkafka refuses the settings.
    pub fn new(kafka: &KafkaConfig, source: Topic, schema: &'static str) -> Result<Self, KafkaError> {
        let producer = kafka
            .client_config("processor-dead-letters")
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // The topic takes more than others do, so that the headers fit on top of the largest message.
            .set("message.max.bytes", "2097152")
            .create_with_context(Context::default())?;
        Ok(Self {
            producer,
            topic: kafka.topic(topic::DEAD_LETTERS.name),
            source_topic: kafka.topic(source.name),
            schema,
        })
    }

    /// Returns one for another source with the same producer.
    pub fn of(&self, kafka: &KafkaConfig, source: Topic, schema: &'static str) -> Self {
        Self { source_topic: kafka.topic(source.name), schema, ..self.clone() }
    }

    /// Writes one letter and waits until Kafka has it; after a crash the same letter may be written again.
    ///
    /// Its key is the position that it came from, so that such a second one can be told; the same position of a log
    /// that was replaced has another generation in the headers.
    ///
    /// # Errors
    /// When Kafka did not take it.
    pub async fn deliver(&self, partition: i32, letter: &DeadLetter) -> Result<(), KafkaError> {
        let position = format!("{}/{partition}/{}", self.source_topic, letter.offset);
        let (number, offset) = (partition.to_string(), letter.offset.to_string());
        let mut headers = OwnedHeaders::new();
        for (key, value) in [
            ("topic", &*self.source_topic),
            ("partition", &number),
            ("offset", &offset),
            ("reason", &letter.reason),
            ("schema", self.schema),
        ] {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        headers = headers.insert(Header { key: "key", value: letter.key.as_ref() });
        if let Some(generation) = letter.generation {
            headers = headers.insert(Header { key: GENERATION, value: Some(&generation.to_string()) });
        }
        let record = FutureRecord::to(&self.topic).key(&position).payload(&letter.payload).headers(headers);
        match self.producer.send(record, Timeout::After(Duration::from_secs(5))).await {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error),
        }
    }
}
