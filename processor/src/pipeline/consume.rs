//! The thread that polls Kafka. It sends records to the lanes of their partitions; assignments open and close lanes.
//!
//! It never waits for ClickHouse. When a lane's inbox is full, its partition is paused and polling continues, because
//! the group removes a consumer that does not poll.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use metrics::counter;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{ClientContext, Message as _, Offset, TopicPartitionList};
use service::kafka::{Context, KafkaConfig};
use service::{LogLimit, Shutdown};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::pipeline::chunk::Chunk;
use crate::pipeline::commit::Commits;
use crate::pipeline::lanes::Lanes;

/// How long one poll waits for a record. This is also the longest delay until a paused partition is resumed.
const POLL: Duration = Duration::from_millis(20);

const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Timeout of a seek, which is then retried.
const SEEK: Duration = Duration::from_secs(1);

/// How long a rebalance waits for the inserts in flight of revoked partitions.
const REVOKE_DEADLINE: Duration = Duration::from_secs(10);

/// How much of the remaining shutdown time is reserved for the last commit and for leaving the group.
const LEAVE: Duration = Duration::from_secs(2);

/// Why consuming ended without a stop request.
#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    /// librdkafka reported a fatal error.
    #[error("the Kafka consumer failed")]
    Kafka(#[from] KafkaError),
    /// A lane or the polling thread panicked.
    #[error("{0} panicked")]
    Panicked(String),
    /// The thread could not be started.
    #[error("cannot start the thread that polls Kafka")]
    Thread(#[from] std::io::Error),
}

/// Joins the group and consumes until the stop is requested. Returns after inserts in flight have ended, offsets are
/// committed, and the group is left.
///
/// `topic` and `group` are full names.
///
/// # Errors
/// When librdkafka rejects the settings or reports a fatal error, or when a thread panics.
pub async fn consume(
    kafka: &KafkaConfig,
    topic: &str,
    group: &str,
    lanes: Arc<Lanes>,
    shutdown: Shutdown,
) -> Result<(), ConsumeError> {
    let context = Assignments { lanes, commits: Commits::new(topic.to_owned()), log: Context::default() };
    let tunable = [
        // Maximum memory of fetched records that are not polled yet.
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
        consumer.context().revoke_all(&consumer, deadline);
        // Leaves the group, so that other processes get the partitions immediately.
        drop(consumer);
        // The receiver is gone if the process stopped waiting.
        let _ = ended.send(outcome);
    })?;
    end.await.unwrap_or_else(|_| Err(ConsumeError::Panicked("the thread that polls Kafka".to_owned())))
}

type Consumer = BaseConsumer<Assignments>;

/// Returns the settings of a group consumer whose offsets are committed explicitly. `KAFKA_` settings of the operator
/// take precedence over `tunable` and the timeouts here.
pub(crate) fn settings(
    kafka: &KafkaConfig,
    client: &str,
    group: &str,
    tunable: &[(&str, &str)],
) -> rdkafka::ClientConfig {
    let mut config = kafka.client_config(client);
    let of_all = [
        // The minimum that brokers allow by default. After a kill, partitions wait this long for their next owner.
        ("session.timeout.ms", "6000"),
        ("heartbeat.interval.ms", "2000"),
        // New partitions and newly created topics are noticed within this time.
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
    let mut checked = Instant::now();
    let mut committed = Instant::now();
    let limit = LogLimit::default();
    let mut pending: Option<Chunk> = None;
    while !shutdown.requested() {
        // With a pending chunk, only records that are available already are added.
        let wait = if pending.is_some() { Duration::ZERO } else { POLL };
        let full = match consumer.poll(wait) {
            Some(Ok(message)) => {
                let partition = message.partition();
                let full = pending.take_if(|chunk| !chunk.takes(partition));
                let chunk = pending.get_or_insert_with(|| {
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
                log_error(&limit, &error);
                None
            }
            None => pending.take(),
        };
        if let Some(chunk) = full {
            let partition = chunk.partition();
            if lanes.push(chunk) {
                counter!("hopline_processor_pauses_total").increment(1);
                consumer.pause(&partitions(topic, &[partition]))?;
            }
        }
        if checked.elapsed() < POLL {
            continue;
        }
        checked = Instant::now();
        let resumable = lanes.resumable();
        if !resumable.is_empty() {
            consumer.resume(&partitions(topic, &resumable))?;
        }
        for (partition, seek) in lanes.seeks() {
            // Its records are from before the seek.
            pending.take_if(|chunk| chunk.partition() == partition);
            let offset = Offset::Offset(i64::try_from(seek.to).unwrap_or(i64::MAX));
            match consumer.seek(topic, partition, offset, SEEK) {
                // librdkafka discards what it fetched before, so the next record is from the requested offset.
                Ok(()) => lanes.seek_done(partition, seek),
                Err(error) => log_error(&limit, &error),
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

pub(super) fn log_error(limit: &LogLimit, error: &KafkaError) {
    if limit.is_due() {
        tracing::warn!(%error, "an error of the Kafka consumer, from which it recovers by itself: {error}");
    }
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

/// Handles assigned and revoked partitions.
struct Assignments {
    lanes: Arc<Lanes>,
    commits: Commits,
    log: Context,
}

impl Assignments {
    fn revoke(&self, consumer: &Consumer, numbers: &[i32], deadline: Instant) {
        let closed = self.lanes.close(numbers, deadline);
        // A lost partition belongs to another process already, and Kafka would accept the commit.
        if !consumer.assignment_lost() {
            self.commits.commit(consumer, &closed, CommitMode::Sync);
        }
        self.commits.forget(numbers);
    }

    fn revoke_all(&self, consumer: &Consumer, deadline: Instant) {
        let all: Vec<i32> = self.lanes.phases().into_iter().map(|(partition, _)| partition).collect();
        let deadline = deadline.checked_sub(LEAVE).unwrap_or(deadline);
        self.revoke(consumer, &all, deadline);
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
            tracing::info!(partitions = ?numbers, "partitions are revoked: {numbers:?}");
            self.revoke(consumer, &numbers, Instant::now() + REVOKE_DEADLINE);
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => {
                let numbers = numbers(list);
                tracing::info!(partitions = ?numbers, "partitions are assigned: {numbers:?}");
                // A partition that was paused when it was revoked may still be paused.
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
            tracing::debug!(%error, "a commit failed; the next one covers it");
        }
    }
}
