//! A Kafka consumer that reads a partition only from an explicitly given offset.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::OwnedMessage;
use rdkafka::topic_partition_list::Offset;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, TopicPartitionList};
use service::kafka::{Context, KafkaConfig, topic_ids};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

use crate::store::Partition;

/// After a kill, partitions wait this long for another process; the minimum that brokers allow by default.
const SESSION_TIMEOUT_MS: &str = "6000";

/// How long a request may wait for an answer before its connection is closed. librdkafka's default is a minute, which a
/// broker that fails during a request would cost. None of our requests normally waits this long.
const SOCKET_TIMEOUT_MS: &str = "10000";

/// Maximum data that librdkafka fetches ahead.
const PREFETCH_KIB: &str = "16384";

/// Timeout of a request for offsets.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after a polling error.
///
/// While Kafka is unreachable, librdkafka queues many errors per second, and messages and changes of the assignment
/// wait behind them. With a longer pause, reading would resume only minutes after Kafka is back. Without a pause, a
/// permanent error would use a whole core.
const ERROR_PAUSE: Duration = Duration::from_millis(1);

/// Tracks this member's partitions.
///
/// librdkafka calls it while messages are polled, in order with them.
#[derive(Default)]
struct Assignment {
    log: Context,
    /// How often partitions had to be taken over.
    changes: AtomicU64,
    changed: Notify,
    /// `None` while this is not a member of the group.
    partitions: Mutex<Option<Vec<Partition>>>,
}

impl Assignment {
    fn change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// Handles a polling error.
    fn fails(&self, error: KafkaError) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AutoOffsetReset) {
            // The log does not have the requested offset, and librdkafka has stopped reading the partition.
            self.change();
        }
        self.log.error(error, "cannot read from Kafka");
    }
}

impl ClientContext for Assignment {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.log.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(error, reason);
    }
}

impl ConsumerContext for Assignment {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let (assigned, answer) = if event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            let partitions = partitions.elements();
            let partitions = partitions.iter().map(|one| Partition::new(one.topic(), one.partition()));
            // Nothing is read until the positions are known.
            (Some(partitions.collect()), consumer.assign(&TopicPartitionList::new()))
        } else {
            (None, consumer.unassign())
        };
        if let Err(error) = answer {
            self.log.error(error, "cannot answer to a rebalance");
        }
        *self.partitions.lock() = assigned;
        self.change();
    }
}

/// The state of a partition in Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Log {
    /// Kafka's id of the topic.
    pub(super) topic_id: Uuid,
    /// The first offset that retention has not removed.
    pub(super) start: i64,
    /// The offset after the last.
    pub(super) end: i64,
    /// The group's committed offset.
    pub(super) committed: Option<i64>,
}

/// A member of a consumer group that reads committed messages.
pub(super) struct Consumer {
    inner: Arc<StreamConsumer<Assignment>>,
}

impl Consumer {
    /// Joins a group. `topics` and `group` are full names.
    ///
    /// # Errors
    /// When librdkafka rejects the settings.
    pub(super) fn join(kafka: &KafkaConfig, group: &str, topics: &[&str]) -> KafkaResult<Self> {
        let inner: StreamConsumer<Assignment> = kafka
            .client_config("dispatcher-enqueue")
            .set("group.id", group)
            // With the eager protocol, every rebalance revokes all partitions and assigns them again.
            .set("partition.assignment.strategy", "range")
            .set("session.timeout.ms", SESSION_TIMEOUT_MS)
            .set("socket.timeout.ms", SOCKET_TIMEOUT_MS)
            .set("heartbeat.interval.ms", "2000")
            .set("enable.auto.commit", "false")
            // librdkafka never chooses the position.
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_committed")
            // Topics may be created after this process has started.
            .set("topic.metadata.refresh.interval.ms", "10000")
            .set("fetch.wait.max.ms", "100")
            .set("queued.max.messages.kbytes", PREFETCH_KIB)
            .set("fetch.queue.backoff.ms", "20")
            .create_with_context(Assignment::default())?;
        inner.subscribe(topics)?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Waits for messages, then collects more for at most `linger`, up to `limit`.
    ///
    /// Returns early, possibly without messages, when partitions must be taken over.
    pub(super) async fn poll(&self, limit: usize, linger: Duration) -> Vec<OwnedMessage> {
        let context = self.inner.context();
        let mut messages = loop {
            let received = tokio::select! {
                received = self.inner.recv() => received,
                () = context.changed.notified() => return Vec::new(),
            };
            match received {
                Ok(message) => break vec![message.detach()],
                Err(error) => {
                    context.fails(error);
                    sleep(ERROR_PAUSE).await;
                }
            }
        };
        let end = Instant::now() + linger;
        while messages.len() < limit
            && let Ok(received) = timeout_at(end, self.inner.recv()).await
        {
            match received {
                Ok(message) => messages.push(message.detach()),
                Err(error) => {
                    context.fails(error);
                    break;
                }
            }
        }
        messages
    }

    /// Returns whether this is a member of its group, with or without partitions.
    pub(super) fn is_member(&self) -> bool {
        self.partitions().is_some()
    }

    /// Returns how often partitions had to be taken over, because the assignment changed or a log lost the requested
    /// offset.
    pub(super) fn changes(&self) -> u64 {
        self.inner.context().changes.load(Ordering::SeqCst)
    }

    /// Leaves the group in the background, because that may wait for the coordinator.
    pub(super) fn leave(self) {
        spawn_blocking(move || drop(self));
    }

    /// Returns the assigned partitions; `None` while this is not a member of the group.
    pub(super) fn partitions(&self) -> Option<Vec<Partition>> {
        self.inner.context().partitions.lock().clone()
    }

    /// Requests the topic ids, the offsets, and the group's committed offsets of partitions from Kafka.
    pub(super) async fn logs(&self, partitions: Vec<Partition>) -> KafkaResult<Vec<(Partition, Log)>> {
        self.blocking(move |consumer| {
            let topics: BTreeSet<&str> = partitions.iter().map(|partition| &*partition.topic).collect();
            let ids = topic_ids(consumer.client(), &Vec::from_iter(topics), TIMEOUT)?;
            let asked = list(partitions.iter().map(|partition| (partition, Offset::Invalid)))?;
            let committed = consumer.committed_offsets(asked, TIMEOUT)?;
            let log = |partition: Partition| {
                let unknown = KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition);
                let topic_id = *ids.get(&*partition.topic).ok_or(unknown)?;
                let (start, end) = consumer.fetch_watermarks(&partition.topic, partition.number, TIMEOUT)?;
                let committed = committed.find_partition(&partition.topic, partition.number);
                let committed = match committed.map(|one| one.offset()) {
                    Some(Offset::Offset(offset)) => Some(offset),
                    _ => None,
                };
                Ok((partition, Log { topic_id, start, end, committed }))
            };
            partitions.into_iter().map(log).collect()
        })
        .await
    }

    /// Continues reading at these positions and discards fetched messages.
    pub(super) async fn read_from(&self, positions: TopicPartitionList) -> KafkaResult<()> {
        self.blocking(move |consumer| consumer.assign(&positions)).await
    }

    /// Commits offsets asynchronously, for tools that show the group's lag.
    pub(super) fn report(&self, offsets: &TopicPartitionList) {
        if let Err(error) = self.inner.commit(offsets, CommitMode::Async) {
            tracing::debug!("cannot commit offsets: {error}");
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&StreamConsumer<Assignment>) -> KafkaResult<T> + Send + 'static,
    ) -> KafkaResult<T> {
        let consumer = Arc::clone(&self.inner);
        // A panicked or cancelled thread counts as no answer.
        spawn_blocking(move || ask(&consumer)).await.unwrap_or(Err(KafkaError::Canceled))
    }
}

/// Converts partitions and offsets for librdkafka.
pub(super) fn list<'a>(
    offsets: impl IntoIterator<Item = (&'a Partition, Offset)>,
) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in offsets {
        list.add_partition_offset(&partition.topic, partition.number, offset)?;
    }
    Ok(list)
}
