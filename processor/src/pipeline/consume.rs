//! The thread that polls Kafka. It sends records to the lanes of their partitions; assignments open and close lanes.
//!
//! It never waits for ClickHouse. Each partition has a queue of its own, which is not read while the lane's inbox is
//! full: librdkafka then fetches no more of that partition, and of the others it does. Pausing it would discard what
//! was fetched, and a paused partition that is alone on its broker is fetched again only after up to a second, when the
//! thread of that broker wakes up.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use metrics::gauge;
use parking_lot::Mutex;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::{ClientContext, Message as _, Offset, TopicPartitionList};
use service::kafka::{Context, KafkaConfig};
use service::{LogLimit, Shutdown};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::pipeline::chunk::Chunk;
use crate::pipeline::commit::Commits;
use crate::pipeline::lanes::Lanes;

/// How long a record or an event waits at most until it is seen.
const POLL: Duration = Duration::from_millis(10);

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
    let context = Assignments {
        lanes,
        commits: Commits::new(topic.to_owned()),
        topic: topic.to_owned(),
        consumer: OnceLock::new(),
        queues: Mutex::default(),
        log: Context::default(),
    };
    let tunable = [
        // Of each partition's fetched records that are not polled yet.
        ("queued.max.messages.kbytes", "2048"),
        ("fetch.queue.backoff.ms", "10"),
    ];
    let consumer: Arc<Consumer> =
        Arc::new(settings(kafka, "processor", group, &tunable).create_with_context(context)?);
    // Nobody else sets it.
    let _ = consumer.context().consumer.set(Arc::downgrade(&consumer));
    consumer.subscribe(&[topic])?;
    let (ended, end) = oneshot::channel();
    thread::Builder::new().name("consume".to_owned()).spawn(move || {
        let outcome = poll(&consumer, &shutdown);
        let deadline = shutdown.deadline().unwrap_or_else(Instant::now);
        consumer.context().revoke_all(&consumer, deadline);
        consumer.context().queues.lock().clear();
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

fn poll(consumer: &Consumer, shutdown: &Shutdown) -> Result<(), ConsumeError> {
    let assignments = &**consumer.context();
    let Assignments { lanes, commits, topic, .. } = assignments;
    let limit = LogLimit::default();
    let (mut checked, mut committed) = (Instant::now(), Instant::now());
    let mut wait = POLL;
    while !shutdown.requested() {
        // Events; records only of a partition without a queue of its own, such as one of a topic that was created
        // again.
        if let Some(message) = received(consumer.poll(wait), &limit)? {
            let mut chunk = Chunk::new(message.partition());
            chunk.push(&message);
            lanes.push(chunk);
        }
        wait = if assignments.fill_lanes(&limit)? { Duration::ZERO } else { POLL };
        if checked.elapsed() < POLL {
            continue;
        }
        checked = Instant::now();
        for (partition, seek) in lanes.seeks() {
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
            gauge!("hopline_processor_full_partitions").set(lanes.full() as f64);
            if let Some(partition) = lanes.broken().first() {
                return Err(ConsumeError::Panicked(format!("the lane of partition {partition}")));
            }
        }
    }
    Ok(())
}

/// Returns what a queue returned; errors from which the consumer recovers are logged.
fn received<'a>(
    polled: Option<KafkaResult<BorrowedMessage<'a>>>,
    limit: &LogLimit,
) -> Result<Option<BorrowedMessage<'a>>, ConsumeError> {
    match polled {
        Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => Err(error.into()),
        Some(Err(error)) => {
            log_error(limit, &error);
            Ok(None)
        }
        Some(Ok(message)) => Ok(Some(message)),
        None => Ok(None),
    }
}

pub(super) fn log_error(limit: &LogLimit, error: &KafkaError) {
    if limit.is_due() {
        tracing::warn!(%error, "an error of the Kafka consumer, from which it recovers by itself: {error}");
    }
}

fn numbers(list: &TopicPartitionList) -> Vec<i32> {
    list.elements().iter().map(|element| element.partition()).collect()
}

/// Handles assigned and revoked partitions.
struct Assignments {
    lanes: Arc<Lanes>,
    commits: Commits,
    topic: String,
    /// The consumer that has this context.
    consumer: OnceLock<Weak<Consumer>>,
    /// A queue of each assigned partition. They keep the consumer alive.
    queues: Mutex<BTreeMap<i32, PartitionQueue<Assignments>>>,
    log: Context,
}

impl Assignments {
    /// Gives partitions queues of their own. Before they are assigned, so that no record comes by the consumer's.
    #[expect(clippy::disallowed_methods, reason = "polled without waiting, so a lost wake-up stalls nothing")]
    fn split(&self, numbers: &[i32]) {
        let Some(consumer) = self.consumer.get().and_then(Weak::upgrade) else { return };
        let split = |number: &i32| Some((*number, consumer.split_partition_queue(&self.topic, *number)?));
        self.queues.lock().extend(numbers.iter().filter_map(split));
    }

    /// Moves records that were fetched to those lanes that have room; returns whether there were any.
    fn fill_lanes(&self, limit: &LogLimit) -> Result<bool, ConsumeError> {
        let mut found = false;
        for (partition, queue) in &*self.queues.lock() {
            if !self.lanes.has_room(*partition) {
                continue;
            }
            let mut chunk = Chunk::new(*partition);
            while !chunk.is_full()
                && let Some(message) = received(queue.poll(Duration::ZERO), limit)?
            {
                chunk.push(&message);
            }
            if !chunk.is_empty() {
                found = true;
                self.lanes.push(chunk);
            }
        }
        Ok(found)
    }

    fn revoke(&self, consumer: &Consumer, numbers: &[i32], deadline: Instant) {
        self.queues.lock().retain(|number, _| !numbers.contains(number));
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
        match rebalance {
            Rebalance::Assign(list) => self.split(&numbers(list)),
            Rebalance::Revoke(list) => {
                let numbers = numbers(list);
                tracing::info!(partitions = ?numbers, "partitions are revoked: {numbers:?}");
                self.revoke(consumer, &numbers, Instant::now() + REVOKE_DEADLINE);
            }
            Rebalance::Error(_) => {}
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => {
                let numbers = numbers(list);
                tracing::info!(partitions = ?numbers, "partitions are assigned: {numbers:?}");
                self.lanes.open_lanes(&numbers);
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
