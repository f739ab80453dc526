//! Reading the end of topic `clicks`, for as long as the process lives.

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
use crate::resources::clicks::click;
use crate::resources::live::hub::Hub;

/// How long one poll waits, and so how long a stop may take.
const POLL: Duration = Duration::from_millis(100);

/// How long brokers may take to say where the end is, and how long to wait before asking again.
const TIMEOUT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(500);

/// How often what nobody listens to is forgotten, and partitions are looked for that are new.
const FORGET_INTERVAL: Duration = Duration::from_secs(30);

type Consumer = BaseConsumer<kafka::Context>;

/// Starts the thread that gives clicks to those who listen; it ends at the shutdown.
///
/// # Errors
/// When the settings are refused, or no thread can be started.
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
                        // The brokers are away, or the topic is not there yet. Clicks that come in between are in
                        // the totals; who listens has nothing to count on but those.
                        Err(error) => {
                            tracing::debug!(error = &error as &dyn std::error::Error, "No live clicks yet");
                            if partitions == 0 {
                                thread::sleep(PAUSE);
                                continue;
                            }
                            looked = Some(Instant::now());
                        }
                    }
                    hub.forget();
                }
                // Errors are in the log by the context, and pass.
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
        // Never joined, never committed to: librdkafka assigns nothing without a name.
        .set("group.id", config.topic("api-live"))
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "latest")
        .set("isolation.level", "read_committed")
        .set("allow.auto.create.topics", "false")
        // What is seen late is of little use: rather less memory.
        .set("queued.max.messages.kbytes", "8192")
        .set("fetch.wait.max.ms", "100");
    client
}

/// Reads each partition from its end on when there are more of them than known; returns how many there are.
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
        // The end as it is now, and not as it is when the first fetch gets there: nothing is left out in between.
        let (_, end) = consumer.fetch_watermarks(topic, *partition, TIMEOUT)?;
        ends.add_partition_offset(topic, *partition, Offset::Offset(end))?;
    }
    consumer.assign(&ends)?;
    Ok(partitions.len())
}

fn no_such_topic() -> rdkafka::error::KafkaError {
    rdkafka::error::KafkaError::MetadataFetch(rdkafka::error::RDKafkaErrorCode::UnknownTopicOrPartition)
}

/// All that must be known of a click that nobody listens for.
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
    // What cannot be read is the processor's to report. A click that is sent again was seen the first time.
    let Ok(click) = Click::decode(payload) else { return };
    if click.again {
        return;
    }
    let millis = record.timestamp().to_millis().unwrap_or_default();
    let place = hub.place(millis, record.partition(), record.offset());
    let link = click.link_id.uuid();
    hub.publish(workspace, Event::new(place, link, &click::json(click)));
}
