//! Stores deleted links and conversions from their topics in their tables, at least once. Writing a row again changes
//! no count.
//!
//! Conversions wait in a table of their own until their click is stored; see [`crate::upkeep`].
//!
//! Where a partition is read from is known by ClickHouse: of the position there and the offset committed to Kafka the
//! lower one counts, so that a ClickHouse that was restored from a backup gets again what it lost.
//!
//! The process to which this group assigns the only partition of topic `links` also runs upkeep; see [`crate::upkeep`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance, StreamConsumer,
};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{ClientContext, Message as _, Offset, TopicPartitionList};
use schemas::message::{Conversion, DeletedLink, EdgeToken, LinkRecord, Message as _};
use schemas::topic;
use service::kafka::{Context, DeadLetters, KafkaConfig};
use service::{LogLimit, Shutdown};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use crate::clickhouse::Store;
use crate::pipeline::consume::{log_error, settings};
use crate::pipeline::dead_letter::{self, Unreadable};
use crate::pipeline::decode::{Record, RecordError};
use crate::pipeline::deleted_links::DeletedLinks;
use crate::pipeline::retry::{Stopped, until_done};

/// How long a record waits for more records to share its insert.
const AGE: Duration = Duration::from_millis(500);

/// Maximum records of one insert.
const RECORDS: usize = 10_000;

/// How long Kafka may take to answer where a partition starts.
const ANSWER: Duration = Duration::from_secs(5);

/// The pause after a polling error, from which librdkafka recovers by itself.
///
/// While Kafka is unreachable, librdkafka queues many errors per second, and later records wait behind them. With a
/// longer pause, reading would resume only minutes after Kafka is back.
const PAUSE: Duration = Duration::from_millis(1);

/// What [`intake`] works with.
#[derive(Debug)]
pub struct Tools {
    /// The tables.
    pub store: Store,
    /// The topic of dead letters.
    pub dead_letters: DeadLetters,
    /// The links whose conversions are not stored.
    pub deleted_links: DeletedLinks,
}

/// Joins the group and stores the records of its topics until the stop is requested. `upkeep` receives whether this
/// process must run upkeep.
///
/// # Errors
/// When librdkafka rejects the settings. Everything else is retried.
pub async fn intake(
    kafka: &KafkaConfig,
    group: &str,
    tools: &Tools,
    upkeep: watch::Sender<bool>,
    shutdown: &Shutdown,
) -> Result<(), KafkaError> {
    let (links, conversions) = (kafka.topic(topic::LINKS.name), kafka.topic(topic::CONVERSIONS.name));
    let has_new = watch::Sender::new(false);
    let mut new_partitions = has_new.subscribe();
    let context = Assignments { links: links.clone(), upkeep, has_new, log: Context::default() };
    let tunable = [("queued.max.messages.kbytes", "4096")];
    let consumer: StreamConsumer<Assignments> =
        settings(kafka, "processor-intake", group, &tunable).create_with_context(context)?;
    consumer.subscribe(&[&links, &conversions])?;
    let consumer = Arc::new(consumer);
    let mut pending = Pending::new(links);
    let limit = LogLimit::default();
    loop {
        let due = async {
            match pending.started {
                Some(started) => sleep_until(started + AGE).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shutdown.wait() => break,
            () = new_partitions.wait_for(|has_new| *has_new).map(drop) => {
                consumer.context().has_new.send_replace(false);
                if start(&consumer, &tools.store, shutdown).await.is_err() {
                    break;
                }
            }
            () = due => {
                if pending.store(tools, &consumer, shutdown).await.is_err() {
                    break;
                }
            }
            received = consumer.recv(), if pending.records < RECORDS => match received {
                // It is read again, because every partition starts anew.
                Ok(_) if *consumer.context().has_new.borrow() => {}
                Ok(message) => pending.add(&message),
                Err(error) => {
                    log_error(&limit, &error);
                    sleep(PAUSE).await;
                }
            },
        }
    }
    // Leaving the group blocks until its coordinator answers.
    let _ = spawn_blocking(move || drop(consumer)).await;
    Ok(())
}

/// Lets the consumer start its partitions where ClickHouse's records of them end. Those that it had before are
/// included: a record that was received in between may be of one of them, and reading records again has no effect.
async fn start(
    consumer: &Arc<StreamConsumer<Assignments>>,
    store: &Store,
    shutdown: &Shutdown,
) -> Result<(), Stopped> {
    let stop = shutdown.token();
    let positions =
        until_done("read the positions of links and conversions", 0, &stop, || store.intake_positions())
            .await?;
    until_done("start reading links and conversions", 0, &stop, || {
        let (consumer, positions) = (Arc::clone(consumer), positions.clone());
        async move {
            spawn_blocking(move || seek(&consumer, &positions)).await.unwrap_or(Err(KafkaError::Canceled))
        }
    })
    .await
}

fn seek(consumer: &StreamConsumer<Assignments>, positions: &HashMap<(String, i32), i64>) -> KafkaResult<()> {
    let assigned = consumer.assignment()?;
    if assigned.count() == 0 {
        return Ok(());
    }
    let mut starts = TopicPartitionList::new();
    for committed in consumer.committed_offsets(assigned, ANSWER)?.elements() {
        let (topic, partition) = (committed.topic(), committed.partition());
        let start = match (committed.offset(), positions.get(&(topic.to_owned(), partition))) {
            (Offset::Offset(committed), Some(&stored)) => Offset::Offset(committed.min(stored)),
            _ => Offset::Beginning,
        };
        if start != committed.offset() {
            tracing::info!(partition, "reading partition {partition} of topic {topic} from {start:?}");
        }
        starts.add_partition_offset(topic, partition, start)?;
    }
    for started in consumer.seek_partitions(starts, ANSWER)?.elements() {
        started.error()?;
    }
    Ok(())
}

/// Records that are not stored yet, and the offsets to commit after them.
struct Pending {
    links: String,
    deleted: Vec<DeletedLink>,
    conversions: Vec<Conversion>,
    unreadable: Vec<Unreadable>,
    next: TopicPartitionList,
    records: usize,
    started: Option<Instant>,
}

impl Pending {
    fn new(links: String) -> Self {
        Self {
            links,
            deleted: Vec::new(),
            conversions: Vec::new(),
            unreadable: Vec::new(),
            next: TopicPartitionList::new(),
            records: 0,
            started: None,
        }
    }

    fn add(&mut self, message: &BorrowedMessage<'_>) {
        let (topic, partition, offset) = (message.topic(), message.partition(), message.offset());
        let record = Record::of(message);
        let is_link = topic == self.links;
        let read = if is_link { self.add_link(&record) } else { self.add_conversion(&record) };
        if let Err(error) = read {
            let schema = if is_link { "link.v1" } else { "conversion.v1" };
            self.unreadable.push(Unreadable::new(topic, schema, partition, &record, &error));
        }
        let next = Offset::Offset(offset + 1);
        match self.next.find_partition(topic, partition) {
            Some(mut known) => known.set_offset(next),
            None => self.next.add_partition_offset(topic, partition, next),
        }
        // Both fail only for an invalid offset.
        .unwrap_or_else(|error| tracing::warn!(%error, "cannot set offset {offset}: {error}"));
        self.records += 1;
        self.started.get_or_insert_with(Instant::now);
    }

    fn add_link(&mut self, record: &Record<'_>) -> Result<(), RecordError> {
        let value = record.payload.ok_or(RecordError::NoValue)?;
        if record.key.is_some_and(|key| key.starts_with(EdgeToken::KEY_PREFIX.as_bytes())) {
            return Ok(());
        }
        if let LinkRecord::Deleted(link) = LinkRecord::decode(value)? {
            self.deleted.push(link);
        }
        Ok(())
    }

    fn add_conversion(&mut self, record: &Record<'_>) -> Result<(), RecordError> {
        let conversion = Conversion::decode(record.payload.ok_or(RecordError::NoValue)?)?;
        if let Some(early) = [conversion.clicked_at, conversion.converted_at].into_iter().find(is_early) {
            return Err(RecordError::BeforeEpoch(early));
        }
        self.conversions.push(conversion);
        Ok(())
    }

    /// Stores and commits the pending records.
    async fn store(
        &mut self,
        tools: &Tools,
        consumer: &StreamConsumer<Assignments>,
        shutdown: &Shutdown,
    ) -> Result<(), Stopped> {
        let stop = shutdown.token();
        dead_letter::write(&self.unreadable, &tools.dead_letters, &stop).await?;
        if !self.deleted.is_empty() {
            let insert = || tools.store.insert_deleted_links(&self.deleted);
            until_done("store deleted links", 0, &stop, insert).await?;
            // Conversions of these links must not be stored below.
            until_done("read the deleted links", 0, &stop, || tools.deleted_links.refresh(&tools.store))
                .await?;
        }
        self.conversions.retain(|conversion| !tools.deleted_links.contain(conversion.link_id));
        if !self.conversions.is_empty() {
            let insert = || tools.store.insert_waiting(&self.conversions);
            until_done("store conversions", 0, &stop, insert).await?;
        }
        let positions: Vec<_> = self.next.elements().iter().filter_map(position).collect();
        let insert = || tools.store.insert_intake_positions(&positions);
        until_done("store the positions of links and conversions", 0, &stop, insert).await?;
        if let Err(error) = consumer.commit(&self.next, CommitMode::Async) {
            // Records that are not committed are stored again, which changes no count.
            tracing::debug!(%error, "cannot commit links and conversions: {error}");
        }
        self.deleted.clear();
        self.conversions.clear();
        self.unreadable.clear();
        self.next = TopicPartitionList::new();
        self.records = 0;
        self.started = None;
        Ok(())
    }
}

fn position(next: &TopicPartitionListElem<'_>) -> Option<(String, i32, i64)> {
    Some((next.topic().to_owned(), next.partition(), next.offset().to_raw()?))
}

fn is_early(time: &DateTime<Utc>) -> bool {
    *time < DateTime::UNIX_EPOCH
}

/// Tracks whether partitions were just assigned, and whether this process must run upkeep.
struct Assignments {
    links: String,
    upkeep: watch::Sender<bool>,
    has_new: watch::Sender<bool>,
    log: Context,
}

impl Assignments {
    fn has_links(&self, list: &TopicPartitionList) -> bool {
        list.elements_for_topic(&self.links).iter().any(|element| element.partition() == 0)
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
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if matches!(rebalance, Rebalance::Revoke(list) if self.has_links(list)) {
            self.upkeep.send_replace(false);
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            if list.count() > 0 {
                self.has_new.send_replace(true);
            }
            if self.has_links(list) {
                self.upkeep.send_replace(true);
            }
        }
    }
}
