//! Publishes clicks directly to topic `clicks`, without the spool.

use std::sync::Arc;

use anyhow::Context as _;
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::producer::{FutureProducer, FutureRecord};
use schemas::message::{Click, Message as _};
use schemas::topic;
use service::kafka::{self, KafkaConfig};

use crate::publish::Partitions;

/// How long publishing a click may take. Its request fails afterwards.
const MESSAGE_TIMEOUT_MS: &str = "5000";

/// The producer's maximum queue size. Further clicks are rejected.
const QUEUE_KBYTES: &str = "65536";

type Producer = FutureProducer<kafka::Context>;

/// Why clicks may not be on the topic.
#[derive(Debug, thiserror::Error)]
pub(super) enum PublishError {
    /// Kafka did not confirm a click in time, or rejected it.
    #[error("Kafka did not confirm the clicks")]
    Kafka(#[from] KafkaError),
    /// The producer was closed.
    #[error("the producer of clicks was closed")]
    Closed,
}

/// Publishes clicks and waits until all in-sync replicas have them.
pub(super) struct Publisher {
    producer: Producer,
    topic: Arc<str>,
    partitions: Arc<Partitions>,
}

impl Publisher {
    pub(super) fn new(config: &KafkaConfig, partitions: Arc<Partitions>) -> anyhow::Result<Self> {
        let producer = settings(config)
            .create_with_context(kafka::Context::default())
            .context("cannot use the Kafka settings for publishing clicks of external edges")?;
        Ok(Self { producer, topic: config.topic(topic::CLICKS.name).into(), partitions })
    }

    /// Publishes clicks and returns when Kafka has all of them. After an error Kafka may have some of them.
    pub(super) async fn publish(&self, clicks: impl Iterator<Item = &Click>) -> Result<(), PublishError> {
        let mut sent = Vec::new();
        for click in clicks {
            let (key, value) = (&click.click_id, click.encode());
            let partition = self.partitions.for_click_id(key.as_bytes());
            let record = FutureRecord::to(&self.topic).partition(partition).key(key).payload(&value);
            sent.push(self.producer.send_result(record).map_err(|(error, _)| error)?);
        }
        // All are in flight, so this takes as long as the slowest.
        for delivery in sent {
            delivery.await.map_err(|_| PublishError::Closed)?.map_err(|(error, _)| error)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Publisher").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// Returns the producer's settings. The producer is not idempotent: all its clicks are marked as possible repeats,
/// and an idempotent producer would have to be replaced after a record timed out.
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
