//! The one thread that polls Kafka: records go to their lanes, assignments open and close them.
//!
//! It never waits for ClickHouse. A lane whose inbox is full has its partition paused; polling goes on, because
//! a consumer that does not poll is thrown out of its group.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use metrics::counter;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{ClientContext, Message as _, Offset, TopicPartitionList};
use service::Shutdown;
use service::kafka::{Context, KafkaConfig};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::pipeline::chunk::Chunk;
use crate::pipeline::commit::Commits;
use crate::pipeline::lanes::Lanes;

/// How long one poll waits for a record, and so the longest until a paused partition is resumed.
const POLL: Duration = Duration::from_millis(20);

const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// How long a partition's reader may take to go to an offset; else it is tried again.
const SEEK: Duration = Duration::from_secs(1);

/// How long a partition that goes to another process may hold up the rebalance for its insert in flight.
const GIVE_BACK: Duration = Duration::from_secs(10);

/// Of the time left at a stop, what is kept for the last commit and for leaving the group.
const LEAVE: Duration = Duration::from_secs(2);

/// Why consuming ended although nobody asked for it.
#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    /// librdkafka cannot go on.
    #[error("the Kafka consumer cannot go on")]
    Kafka(#[from] KafkaError),
    /// A lane or the polling thread panicked.
    #[error("{0} panicked")]
    Panicked(String),
    /// No thread could be started.
    #[error("cannot start the thread that polls Kafka")]
    Thread(#[from] std::io::Error),
}

/// Joins the group and consumes until the stop is requested; ends when inserts in flight are finished, offsets
/// are committed and the group is left.
///
/// `topic` and `group` are full names.
///
/// # Errors
/// When librdkafka refuses the settings or fails for good, or something panics.
pub async fn consume(
    kafka: &KafkaConfig,
    topic: &str,
    group: &str,
    lanes: Arc<Lanes>,
    shutdown: Shutdown,
) -> Result<(), ConsumeError> {
    let context = Assignments { lanes, commits: Commits::new(topic.to_owned()), log: Context::default() };
    let tunable = [
        // Memory that fetched records may take before they are polled.
        ("queued.max.messages.kbytes", "8192"),
        ("fetch.queue.backoff.ms", "20"),
    ];
    let consumer: Consumer = settings(kafka, "processor", group, &tunable).create_with_context(context)?;
    consumer.subscribe(&[topic])?;
    let (ended, end) = oneshot::channel();
    let topic = topic.to_owned();
    thread::Builder::new().name("consume".to_owned()).spawn(move || {
        let outcome = poll(&consumer, &topic, &shutdown);
        let deadline = shutdown.deadline().unwrap_or_else(Instant::now);
        consumer.context().give_back_all(&consumer, deadline);
        // Leaves the group, so that others take the partitions at once.
        drop(consumer);
        // Nobody listens when the process gave up waiting.
        let _ = ended.send(outcome);
    })?;
    end.await.unwrap_or_else(|_| Err(ConsumeError::Panicked("the thread that polls Kafka".to_owned())))
}

type Consumer = BaseConsumer<Assignments>;

/// Returns the settings of a consumer in a group, whose offsets are committed by hand; an operator may tune what `tunable`
/// and this name.
pub(crate) fn settings(
    kafka: &KafkaConfig,
    client: &str,
    group: &str,
    tunable: &[(&str, &str)],
) -> rdkafka::ClientConfig {
    let mut config = kafka.client_config(client);
    let of_all = [
        // The least that brokers allow by default: after a kill, partitions wait this long for their next owner.
        ("session.timeout.ms", "6000"),
        ("heartbeat.interval.ms", "2000"),
        // New partitions, and a topic that was missing, are noticed within this time.
        ("topic.metadata.refresh.interval.ms", "10000"),
    ];
    for (name, value) in of_all.iter().chain(tunable).copied() {
        if config.get(name).is_none() {
            config.set(name, value);
        }
    }
    config
        .set("group.id", group)
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest");
    config
}

fn poll(consumer: &Consumer, topic: &str, shutdown: &Shutdown) -> Result<(), ConsumeError> {
    let Assignments { lanes, commits, .. } = &**consumer.context();
    let mut turned = Instant::now();
    let mut committed = Instant::now();
    let mut troubles = Troubles::default();
    let mut gathered: Option<Chunk> = None;
    while !shutdown.requested() {
        // What was gathered waits for nothing but what is there already.
        let wait = if gathered.is_some() { Duration::ZERO } else { POLL };
        let full = match consumer.poll(wait) {
            Some(Ok(message)) => {
                let partition = message.partition();
                let full = gathered.take_if(|chunk| !chunk.takes(partition));
                let chunk = gathered.get_or_insert_with(|| {
                    lanes.open_lane(partition);
                    Chunk::new(partition)
                });
                chunk.push(&message);
                if full.is_none() {
                    continue;
                }
                full
            }
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => return Err(error.into()),
            Some(Err(error)) => {
                troubles.tell(&error);
                None
            }
            None => gathered.take(),
        };
        if let Some(chunk) = full {
            let partition = chunk.partition();
            if lanes.push(chunk) {
                counter!("hopline_processor_pauses_total").increment(1);
                consumer.pause(&partitions(topic, &[partition]))?;
            }
        }
        if turned.elapsed() < POLL {
            continue;
        }
        turned = Instant::now();
        let resumable = lanes.resumable();
        if !resumable.is_empty() {
            consumer.resume(&partitions(topic, &resumable))?;
        }
        for (partition, seek) in lanes.seeks() {
            // It comes from before.
            gathered.take_if(|chunk| chunk.partition() == partition);
            let offset = Offset::Offset(i64::try_from(seek.to).unwrap_or(i64::MAX));
            match consumer.seek(topic, partition, offset, SEEK) {
                // What was fetched before is not given out any more, so the next record is the one asked for.
                Ok(()) => lanes.sought(partition, seek),
                Err(error) => troubles.tell(&error),
            }
        }
        if committed.elapsed() >= COMMIT_INTERVAL {
            committed = Instant::now();
            commits.commit(consumer, &lanes.phases(), CommitMode::Async);
            if let Some(partition) = lanes.broken().first() {
                return Err(ConsumeError::Panicked(format!("the lane of partition {partition}")));
            }
        }
    }
    Ok(())
}

fn partitions(topic: &str, numbers: &[i32]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(numbers.len());
    for number in numbers {
        list.add_partition(topic, *number);
    }
    list
}

fn numbers(list: &TopicPartitionList) -> Vec<i32> {
    list.elements().iter().map(|element| element.partition()).collect()
}

/// Log lines about errors of polling, one in a while: a topic that is missing is told with each request.
#[derive(Default)]
struct Troubles {
    told: Option<Instant>,
}

impl Troubles {
    fn tell(&mut self, error: &KafkaError) {
        if self.told.is_none_or(|told| told.elapsed() >= Duration::from_secs(30)) {
            self.told = Some(Instant::now());
            tracing::warn!(%error, "consuming has a trouble, librdkafka goes on: {error}");
        }
    }
}

/// What to do when partitions come and go.
struct Assignments {
    lanes: Arc<Lanes>,
    commits: Commits,
    log: Context,
}

impl Assignments {
    fn give_back(&self, consumer: &Consumer, numbers: &[i32], deadline: Instant) {
        let closed = self.lanes.close(numbers, deadline);
        // A lost partition is somebody else's already, and Kafka would not tell.
        if !consumer.assignment_lost() {
            self.commits.commit(consumer, &closed, CommitMode::Sync);
        }
        self.commits.forget(numbers);
    }

    fn give_back_all(&self, consumer: &Consumer, deadline: Instant) {
        let all: Vec<i32> = self.lanes.phases().into_iter().map(|(partition, _)| partition).collect();
        let deadline = deadline.checked_sub(LEAVE).unwrap_or(deadline);
        self.give_back(consumer, &all, deadline);
    }
}

impl ClientContext for Assignments {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.log.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(error, reason);
    }
}

impl ConsumerContext for Assignments {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            let numbers = numbers(list);
            tracing::info!(partitions = ?numbers, "giving partitions back: {numbers:?}");
            self.give_back(consumer, &numbers, Instant::now() + GIVE_BACK);
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => {
                let numbers = numbers(list);
                tracing::info!(partitions = ?numbers, "was assigned partitions: {numbers:?}");
                // A partition that was paused when it was given back might still be.
                if let Err(error) = consumer.resume(list) {
                    tracing::debug!(%error, "cannot resume newly assigned partitions");
                }
                numbers.into_iter().for_each(|number| self.lanes.open_lane(number));
            }
            Rebalance::Revoke(_) => {}
            Rebalance::Error(error) => tracing::warn!(%error, "a rebalance failed: {error}"),
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(%error, "Kafka did not take a commit; the next one covers it");
        }
    }
}
