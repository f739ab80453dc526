//! A consumer whose reader knows when its partitions changed hands.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rdkafka::{
    ClientContext, TopicPartitionList,
    bindings::{
        rd_kafka_consumer_group_metadata, rd_kafka_consumer_group_metadata_destroy,
        rd_kafka_consumer_group_metadata_generation_id,
    },
    config::RDKafkaLogLevel,
    consumer::{
        BaseConsumer, Consumer as _, ConsumerContext, ConsumerGroupMetadata, Rebalance, StreamConsumer,
    },
    error::{KafkaError, KafkaResult},
    message::OwnedMessage,
    topic_partition_list::Offset,
};
use service::kafka::{Context, KafkaConfig};
use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};

/// After a kill, this long until the partitions go to another process; brokers allow no less.
const SESSION_TIMEOUT_MS: &str = "6000";

/// How long a request may stay without an answer before its connection is given up: a broker that went away in the
/// middle of one must not cost librdkafka's minute. Every request of ours is answered at once or waits far less.
const SOCKET_TIMEOUT_MS: &str = "10000";

/// What librdkafka may hold ready for us.
const PREFETCH_KIB: &str = "16384";

/// How long brokers may take to answer for positions.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long to leave Kafka alone after an error.
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

/// How long to wait after an error that was polled.
///
/// While Kafka is away librdkafka queues one for each round of connections that it cannot make, many a second, and
/// messages and changes of hands queue up behind them: whoever takes his time here reads on only minutes after Kafka is
/// back. Long enough not to spin, should there be an error each time.
const ERROR_PAUSE: Duration = Duration::from_millis(1);

/// Proof of membership of one generation of the group.
pub(crate) type Membership = Arc<ConsumerGroupMetadata>;

/// Keeps track of this member's partitions.
///
/// librdkafka calls back while messages are polled, in order with them: what is polled after an assignment and
/// before the next revocation belongs to the membership kept here.
#[derive(Default)]
pub(crate) struct Assignment {
    log: Context,
    changes: AtomicU64,
    changed: Notify,
    membership: Mutex<Option<Membership>>,
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
    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let membership = match rebalance {
            Rebalance::Assign(_) => membership(consumer).map(Arc::new),
            Rebalance::Revoke(_) | Rebalance::Error(_) => None,
        };
        *self.membership.lock().unwrap_or_else(PoisonError::into_inner) = membership;
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_one();
    }
}

/// Returns the current membership, unless the group has already dropped this member.
///
/// Without a generation Kafka would accept a transaction's offsets from anybody.
fn membership(consumer: &BaseConsumer<Assignment>) -> Option<ConsumerGroupMetadata> {
    let before = generation(consumer);
    let membership = consumer.group_metadata()?;
    (before >= 0 && generation(consumer) == before).then_some(membership)
}

/// Returns the group's generation as this member knows it; negative when it is no member.
#[allow(unsafe_code)]
fn generation(consumer: &BaseConsumer<Assignment>) -> i32 {
    // SAFETY: the handle is valid while the consumer is borrowed; what it returns is ours and freed once, here.
    unsafe {
        let metadata = rd_kafka_consumer_group_metadata(consumer.client().native_ptr());
        if metadata.is_null() {
            return -1;
        }
        let generation = rd_kafka_consumer_group_metadata_generation_id(metadata);
        rd_kafka_consumer_group_metadata_destroy(metadata);
        generation
    }
}

/// Messages that were polled together.
#[derive(Default)]
pub(crate) struct Polled {
    /// The messages; none when the partitions changed hands meanwhile.
    pub(crate) messages: Vec<OwnedMessage>,
    /// The membership under which the first of them was polled. Should the partitions have changed hands before
    /// the last, then this one is over, and with it whatever is committed in its name.
    pub(crate) membership: Option<Membership>,
}

/// A member of a consumer group that reads committed messages and commits only when told.
#[derive(Clone)]
pub(crate) struct Consumer {
    inner: Arc<StreamConsumer<Assignment>>,
}

impl Consumer {
    /// Joins a group. `topics` and `group` are full names.
    ///
    /// # Errors
    /// When librdkafka refuses the settings.
    pub(crate) fn join(kafka: &KafkaConfig, name: &str, group: &str, topics: &[&str]) -> KafkaResult<Self> {
        let inner: StreamConsumer<Assignment> = kafka
            .client_config(name)
            .set("group.id", group)
            // With the eager protocol every rebalance ends one membership and begins the next.
            .set("partition.assignment.strategy", "range")
            .set("session.timeout.ms", SESSION_TIMEOUT_MS)
            .set("socket.timeout.ms", SOCKET_TIMEOUT_MS)
            .set("heartbeat.interval.ms", "2000")
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
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
    /// Returns early, perhaps with none, when the partitions changed hands.
    pub(crate) async fn poll(&self, limit: usize, linger: Duration) -> Polled {
        let mut messages = loop {
            let received = tokio::select! {
                received = self.inner.recv() => received,
                () = self.inner.context().changed.notified() => return Polled::default(),
            };
            match received {
                Ok(message) => break vec![message.detach()],
                Err(error) => {
                    self.inner.context().error(error, "cannot read from Kafka");
                    sleep(ERROR_PAUSE).await;
                }
            }
        };
        let membership = self.membership();
        let end = Instant::now() + linger;
        while messages.len() < limit
            && let Ok(Ok(message)) = timeout_at(end, self.inner.recv()).await
        {
            messages.push(message.detach());
        }
        Polled { messages, membership }
    }

    /// Tells whether this is a member of its group, with or without partitions.
    pub(crate) fn is_member(&self) -> bool {
        self.membership().is_some()
    }

    /// Returns how often the partitions changed hands so far.
    pub(crate) fn changes(&self) -> u64 {
        self.inner.context().changes.load(Ordering::SeqCst)
    }

    /// Leaves the group in the background: that may wait for a coordinator.
    pub(crate) fn leave(self) {
        spawn_blocking(move || drop(self));
    }

    fn membership(&self) -> Option<Membership> {
        self.inner.context().membership.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the assigned partitions, as topic and number.
    pub(crate) fn assigned(&self) -> KafkaResult<Vec<(String, i32)>> {
        let assignment = self.inner.assignment()?;
        Ok(assignment.elements().iter().map(|one| (one.topic().to_owned(), one.partition())).collect())
    }

    /// Returns the offset after a partition's last message.
    pub(crate) async fn end(&self, topic: String, partition: i32) -> KafkaResult<i64> {
        self.blocking(move |consumer| consumer.fetch_watermarks(&topic, partition, TIMEOUT))
            .await
            .map(|(_, end)| end)
    }

    /// Goes on reading at these positions; what was fetched from elsewhere is dropped.
    pub(crate) async fn seek(&self, positions: TopicPartitionList) -> KafkaResult<()> {
        self.blocking(move |consumer| seek(consumer, positions)).await
    }

    /// Goes on reading at the group's committed offsets, waiting until no open transaction may change them.
    pub(crate) async fn rewind(&self) -> KafkaResult<()> {
        self.blocking(|consumer| {
            let mut positions = TopicPartitionList::new();
            for one in consumer.committed(TIMEOUT)?.elements() {
                one.error()?;
                let offset = match one.offset() {
                    Offset::Invalid => Offset::Beginning,
                    committed => committed,
                };
                positions.add_partition_offset(one.topic(), one.partition(), offset)?;
            }
            seek(consumer, positions)
        })
        .await
    }

    /// Tells the group how far this member is, for whoever watches its lag; the outcome is not waited for.
    pub(crate) fn report(&self, offsets: &TopicPartitionList) {
        if let Err(error) = self.inner.commit(offsets, rdkafka::consumer::CommitMode::Async) {
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

fn seek(consumer: &StreamConsumer<Assignment>, positions: TopicPartitionList) -> KafkaResult<()> {
    if positions.count() == 0 {
        return Ok(());
    }
    for one in consumer.seek_partitions(positions, TIMEOUT)?.elements() {
        one.error()?;
    }
    Ok(())
}
