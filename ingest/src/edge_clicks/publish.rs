//! From a request straight to topic `clicks`: its answer waits for Kafka.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rdkafka::{
    ClientConfig,
    error::KafkaError,
    producer::{FutureProducer, FutureRecord, Producer as _},
};
use schemas::{
    message::{Click, Message as _},
    topic,
};
use service::kafka::{self, KafkaConfig};
use tokio::{sync::Mutex, task::spawn_blocking};

/// How long a click may take to Kafka. What is not there by then is given up, and its request refused.
const MESSAGE_TIMEOUT_MS: &str = "5000";

/// What the producer holds at most; more is refused.
const QUEUE_KBYTES: &str = "65536";

/// How long Kafka may take to say how many partitions there are.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// How long that stays true.
const PARTITIONS_FOR: Duration = Duration::from_secs(60);

type Producer = FutureProducer<kafka::Context>;

/// Why clicks are not on the topic, as far as is known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unpublished {
    /// Kafka did not take one in time, or refused it.
    #[error("Kafka did not take the clicks")]
    Kafka(#[from] KafkaError),
    /// Kafka does not have the topic.
    #[error("Kafka has no partitions of topic clicks")]
    NoPartitions,
    /// The producer ended.
    #[error("the producer of clicks ended")]
    Ended,
}

/// Sends clicks and waits until all in-sync replicas have them.
pub(super) struct Publisher {
    producer: Producer,
    topic: Arc<str>,
    /// How many partitions the topic has, and when Kafka said so.
    partitions: Mutex<Option<(Instant, u32)>>,
}

impl Publisher {
    pub(super) fn new(config: &KafkaConfig) -> anyhow::Result<Self> {
        let producer = settings(config)
            .create_with_context(kafka::Context::default())
            .context("cannot use the Kafka settings for publishing clicks of other edges")?;
        Ok(Self { producer, topic: config.topic(topic::CLICKS.name).into(), partitions: Mutex::default() })
    }

    /// Publishes clicks, and returns when Kafka has all of them.
    ///
    /// After an error it may have any of them.
    pub(super) async fn publish(&self, clicks: impl Iterator<Item = &Click>) -> Result<(), Unpublished> {
        let partitions = self.partitions().await?;
        let mut sent = Vec::new();
        for click in clicks {
            let (key, value) = (&click.click_id, click.encode());
            let record =
                FutureRecord::to(&self.topic).partition(partition(key, partitions)).key(key).payload(&value);
            sent.push(self.producer.send_result(record).map_err(|(error, _)| error)?);
        }
        // All are under way: waiting for one after the other takes as long as the slowest.
        for delivery in sent {
            delivery.await.map_err(|_| Unpublished::Ended)?.map_err(|(error, _)| error)?;
        }
        Ok(())
    }

    /// Returns how many partitions there are. Not a guess: the same click must go to the same one each time.
    async fn partitions(&self) -> Result<u32, Unpublished> {
        let mut known = self.partitions.lock().await;
        if let Some((at, count)) = *known
            && at.elapsed() < PARTITIONS_FOR
        {
            return Ok(count);
        }
        let (producer, topic) = (self.producer.clone(), Arc::clone(&self.topic));
        let asked = spawn_blocking(move || {
            let metadata = producer.client().fetch_metadata(Some(&topic), METADATA_TIMEOUT)?;
            let count = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
            u32::try_from(count).ok().filter(|count| *count > 0).ok_or(Unpublished::NoPartitions)
        });
        match asked.await.unwrap_or(Err(Unpublished::Ended)) {
            Ok(count) => {
                *known = Some((Instant::now(), count));
                Ok(count)
            }
            // Partitions are added now and then and never taken away: what was true is the better guess.
            Err(error) => known.map(|(_, count)| count).ok_or(error),
        }
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Publisher").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// Returns the partition of a click: the same for the same id, so that one processor sees every repeat.
fn partition(click_id: &str, partitions: u32) -> i32 {
    // The remainder is below a count that Kafka gives as an i32.
    (crc32fast::hash(click_id.as_bytes()) % partitions) as i32
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
