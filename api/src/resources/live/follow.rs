//! Reads the end of topic `clicks` and passes clicks to listeners.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use schemas::id::WorkspaceId;
use schemas::message::{Click, Message as _};
use schemas::topic;
use serde::Deserialize;
use service::Shutdown;
use service::kafka::{self, KafkaConfig};

use super::event::Event;
use crate::resources::live::hub::Hub;

/// Timeout of a poll, which bounds the time to stop.
const POLL: Duration = Duration::from_millis(100);

/// Timeout of asking brokers for the end, and the wait before trying again.
const TIMEOUT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(500);

/// How often unused workspaces are removed and new partitions are looked for.
const FORGET_INTERVAL: Duration = Duration::from_secs(30);

type Consumer = BaseConsumer<kafka::Context>;

/// Starts the thread that passes clicks to listeners until shutdown.
///
/// # Errors
/// When the settings are invalid, or no thread can be started.
pub(crate) fn follow(config: &KafkaConfig, hub: Hub, shutdown: Shutdown) -> anyhow::Result<()> {
    let topic = config.topic(topic::CLICKS.name);
    let consumer: Consumer = settings(config)
        .create_with_context(kafka::Context::default())
        .context("cannot use the Kafka settings for following clicks")?;
    thread::Builder::new()
        .name("live".to_owned())
        .spawn(move || {
            let mut partitions = 0;
            let mut looked = None;
            while !shutdown.requested() {
                if looked.is_none_or(|at: Instant| at.elapsed() > FORGET_INTERVAL) {
                    match go_to_end(&consumer, &topic, partitions) {
                        Ok(found) => {
                            partitions = found;
                            hub.follows();
                            looked = Some(Instant::now());
                        }
                        // The brokers are away, or the topic does not exist yet. Clicks that come meanwhile are only in
                        // the totals.
                        Err(error) => {
                            tracing::debug!(
                                error = &error as &dyn std::error::Error,
                                "cannot find the end of topic clicks; live clicks are delayed"
                            );
                            if partitions == 0 {
                                thread::sleep(PAUSE);
                                continue;
                            }
                            looked = Some(Instant::now());
                        }
                    }
                    hub.forget();
                }
                // The context logs errors, which are temporary.
                if let Some(Ok(record)) = consumer.poll(POLL) {
                    see(&hub, &record);
                }
            }
        })
        .context("cannot start the thread that follows clicks")?;
    Ok(())
}

fn settings(config: &KafkaConfig) -> ClientConfig {
    let mut client = config.client_config("api-live");
    client
        // Never joined and never committed to; librdkafka requires a name to assign partitions.
        .set("group.id", config.topic("api-live"))
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "latest")
        .set("isolation.level", "read_committed")
        .set("allow.auto.create.topics", "false")
        // Late clicks are of little use, so the queue is small.
        .set("queued.max.messages.kbytes", "8192")
        .set("fetch.wait.max.ms", "100");
    client
}

/// Reads every partition from its end when there are new ones. Returns the number of partitions.
fn go_to_end(consumer: &Consumer, topic: &str, known: usize) -> KafkaResult<usize> {
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT)?;
    let partitions: Vec<i32> = metadata
        .topics()
        .iter()
        .filter(|found| found.error().is_none())
        .flat_map(|found| found.partitions().iter().map(|partition| partition.id()))
        .collect();
    if partitions.len() <= known {
        return if known == 0 { Err(no_such_topic()) } else { Ok(known) };
    }
    let mut ends = TopicPartitionList::new();
    for partition in &partitions {
        // The present end, not the end at the first fetch, so that nothing is missed in between.
        let (_, end) = consumer.fetch_watermarks(topic, *partition, TIMEOUT)?;
        ends.add_partition_offset(topic, *partition, Offset::Offset(end))?;
    }
    consumer.assign(&ends)?;
    Ok(partitions.len())
}

fn no_such_topic() -> rdkafka::error::KafkaError {
    rdkafka::error::KafkaError::MetadataFetch(rdkafka::error::RDKafkaErrorCode::UnknownTopicOrPartition)
}

/// The fields that decide whether anybody listens.
#[derive(Deserialize)]
struct Whose {
    workspace_id: WorkspaceId,
}

fn see(hub: &Hub, record: &BorrowedMessage<'_>) {
    let Some(payload) = record.payload().filter(|_| hub.wants(None)) else { return };
    let Ok(whose) = serde_json::from_slice::<Whose>(payload) else { return };
    let workspace = whose.workspace_id.uuid();
    if !hub.wants(Some(workspace)) {
        return;
    }
    // The processor reports unreadable clicks. A click that is sent again was shown the first time.
    let Ok(click) = Click::decode(payload) else { return };
    if click.again {
        return;
    }
    let millis = record.timestamp().to_millis().unwrap_or_default();
    let place = hub.place(millis, record.partition(), record.offset());
    let link = click.link_id.uuid();
    hub.publish(workspace, Event::new(place, link, &click.into()));
}
