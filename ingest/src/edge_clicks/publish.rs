//! From a request straight to topic `clicks`: its answer waits for Kafka.

use std::sync::Arc;

use anyhow::Context as _;
use rdkafka::{
    ClientConfig,
    error::KafkaError,
    producer::{FutureProducer, FutureRecord},
};
use schemas::{
    message::{Click, Message as _},
    topic,
};
use service::kafka::{self, KafkaConfig};

use crate::publish::Partitions;

/// How long a click may take to Kafka. What is not there by then is given up, and its request refused.
const MESSAGE_TIMEOUT_MS: &str = "5000";

/// What the producer holds at most; more is refused.
const QUEUE_KBYTES: &str = "65536";

type Producer = FutureProducer<kafka::Context>;

/// Why clicks are not on the topic, as far as is known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unpublished {
    /// Kafka did not take one in time, or refused it.
    #[error("Kafka did not take the clicks")]
    Kafka(#[from] KafkaError),
    /// The producer ended.
    #[error("the producer of clicks ended")]
    Ended,
}

/// Sends clicks and waits until all in-sync replicas have them.
pub(super) struct Publisher {
    producer: Producer,
    topic: Arc<str>,
    partitions: Arc<Partitions>,
}

impl Publisher {
    pub(super) fn new(config: &KafkaConfig, partitions: Arc<Partitions>) -> anyhow::Result<Self> {
        let producer = settings(config)
            .create_with_context(kafka::Context::default())
            .context("cannot use the Kafka settings for publishing clicks of other edges")?;
        Ok(Self { producer, topic: config.topic(topic::CLICKS.name).into(), partitions })
    }

    /// Publishes clicks, and returns when Kafka has all of them.
    ///
    /// After an error it may have any of them.
    pub(super) async fn publish(&self, clicks: impl Iterator<Item = &Click>) -> Result<(), Unpublished> {
        let mut sent = Vec::new();
        for click in clicks {
            let (key, value) = (&click.click_id, click.encode());
            let partition = self.partitions.of(key.as_bytes());
            let record = FutureRecord::to(&self.topic).partition(partition).key(key).payload(&value);
            sent.push(self.producer.send_result(record).map_err(|(error, _)| error)?);
        }
        // All are under way: waiting for one after the other takes as long as the slowest.
        for delivery in sent {
            delivery.await.map_err(|_| Unpublished::Ended)?.map_err(|(error, _)| error)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Publisher").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// Returns the producer's settings. Not idempotent: each of its clicks is marked as a possible repeat anyway, and an
/// idempotent producer that gives up a record has to begin anew.
fn settings(config: &KafkaConfig) -> ClientConfig {
    let mut client = config.client_config("ingest-edge-clicks");
    client
        .set("linger.ms", "5")
        .set("compression.codec", "zstd")
        .set("acks", "all")
        .set("message.timeout.ms", MESSAGE_TIMEOUT_MS)
        .set("queue.buffering.max.kbytes", QUEUE_KBYTES)
        .set("queue.buffering.max.messages", "100000");
    client
}
