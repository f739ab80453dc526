//! A consumer that reads nothing before it was told where to begin.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rdkafka::{
    ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, StreamConsumer},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    message::OwnedMessage,
    topic_partition_list::Offset,
    types::RDKafkaRespErr,
};
use service::kafka::{Context, KafkaConfig, topic_ids};
use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};
use uuid::Uuid;

use crate::store::Partition;

/// After a kill, this long until the partitions go to another process; brokers allow no less.
const SESSION_TIMEOUT_MS: &str = "6000";

/// How long a request may stay without an answer before its connection is given up: a broker that went away in the
/// middle of one must not cost librdkafka's minute. Every request of ours is answered at once or waits far less.
const SOCKET_TIMEOUT_MS: &str = "10000";

/// What librdkafka may hold ready for us.
const PREFETCH_KIB: &str = "16384";

/// How long brokers may take to answer for positions.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait after an error that was polled.
///
/// While Kafka is away librdkafka queues one for each round of connections that it cannot make, many a second, and
/// messages and changes of the assignment queue up behind them: after a longer pause reading would go on only minutes
/// after Kafka is back. Long enough not to spin, should there be an error each time.
const ERROR_PAUSE: Duration = Duration::from_millis(1);

/// Keeps track of this member's partitions.
///
/// librdkafka calls back while messages are polled, in order with them.
#[derive(Default)]
struct Assignment {
    log: Context,
    /// How often there was a reason to take partitions over.
    changes: AtomicU64,
    changed: Notify,
    /// None outside of the group.
    partitions: Mutex<Option<Vec<Partition>>>,
}

impl Assignment {
    fn change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// Notes an error that was polled.
    fn fails(&self, error: KafkaError) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AutoOffsetReset) {
            // The log has no such offset, and the partition is not read any more.
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
            // Nothing is read before it is known from where.
            (Some(partitions.collect()), consumer.assign(&TopicPartitionList::new()))
        } else {
            (None, consumer.unassign())
        };
        if let Err(error) = answer {
            self.log.error(error, "cannot answer to a rebalance");
        }
        *self.partitions.lock().unwrap_or_else(PoisonError::into_inner) = assigned;
        self.change();
    }
}

/// What Kafka knows of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Log {
    /// Kafka's id of the topic.
    pub(super) topic_id: Uuid,
    /// The first offset that is left.
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
    /// When librdkafka refuses the settings.
    pub(super) fn join(kafka: &KafkaConfig, group: &str, topics: &[&str]) -> KafkaResult<Self> {
        let inner: StreamConsumer<Assignment> = kafka
            .client_config("dispatcher-enqueue")
            .set("group.id", group)
            // With the eager protocol every rebalance takes all partitions away and assigns them anew.
            .set("partition.assignment.strategy", "range")
            .set("session.timeout.ms", SESSION_TIMEOUT_MS)
            .set("socket.timeout.ms", SOCKET_TIMEOUT_MS)
            .set("heartbeat.interval.ms", "2000")
            .set("enable.auto.commit", "false")
            // Where to go on is never left to librdkafka.
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_committed")
            // Topics may be made after this process has started.
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
    /// Returns early, perhaps with none, when partitions have to be taken over.
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

    /// Tells whether this is a member of its group, with or without partitions.
    pub(super) fn is_member(&self) -> bool {
        self.partitions().is_some()
    }

    /// Returns how often there was a reason to take partitions over: they changed hands, or one has lost the offset
    /// that was to be read.
    pub(super) fn changes(&self) -> u64 {
        self.inner.context().changes.load(Ordering::SeqCst)
    }

    /// Leaves the group in the background: that may wait for a coordinator.
    pub(super) fn leave(self) {
        spawn_blocking(move || drop(self));
    }

    /// Returns the assigned partitions; none outside of the group.
    pub(super) fn partitions(&self) -> Option<Vec<Partition>> {
        self.inner.context().partitions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks Kafka for the topics and bounds of partitions, and for what the group has committed.
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

    /// Reads from these positions on; what was fetched before is dropped.
    pub(super) async fn read_from(&self, positions: TopicPartitionList) -> KafkaResult<()> {
        self.blocking(move |consumer| consumer.assign(&positions)).await
    }

    /// Commits offsets for programs that watch the group's lag; the outcome is not waited for.
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
        // A panicked or cancelled thread is as good as no answer.
        spawn_blocking(move || ask(&consumer)).await.unwrap_or(Err(KafkaError::Canceled))
    }
}

/// Returns partitions and offsets in librdkafka's form.
pub(super) fn list<'a>(
    offsets: impl IntoIterator<Item = (&'a Partition, Offset)>,
) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in offsets {
        list.add_partition_offset(&partition.topic, partition.number, offset)?;
    }
    Ok(list)
}
