//! Reads topic `links` from its beginning and then follows it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use metrics::{Counter, Gauge, counter, gauge};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use schemas::message::DecodeError;
use schemas::topic;
use service::{Check, LogLimit, kafka};

use crate::links::Links;
use crate::links::record::RecordError;
use crate::links::snapshot::{self, Origin};
use crate::links::table::Table;

/// How long one poll waits. A stop takes up to this long.
const POLL: Duration = Duration::from_millis(100);

/// How often readiness reports the age of the snapshot.
const AGE_INTERVAL: Duration = Duration::from_secs(1);

type Consumer = BaseConsumer<kafka::Context>;

/// The thread that follows the topic. It ends when this is dropped.
#[derive(Debug)]
#[must_use = "the thread ends when this is dropped"]
pub struct Follower {
    stop: Arc<AtomicBool>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Starts to apply the topic's records to the links. `check` is ready once the topic has been read to its end.
///
/// With a `snapshot` the check is ready at once and reports the snapshot's age. The snapshot's links are served until
/// the topic has been read.
///
/// # Errors
/// When the consumer's settings are invalid, or the thread cannot be started.
pub fn start(
    config: &kafka::KafkaConfig,
    links: &Links,
    snapshot: Option<Origin>,
    check: Check,
) -> anyhow::Result<Follower> {
    let topic = config.topic(topic::LINKS.name);
    let consumer: Consumer = settings(config)
        .create_with_context(kafka::Context::default())
        .context("cannot use the Kafka settings for following links")?;
    // Assigned instead of subscribed: every edge needs every link.
    let mut assignment = TopicPartitionList::new();
    assignment
        .add_partition_offset(&topic, 0, Offset::Beginning)
        .and_then(|()| consumer.assign(&assignment))
        .context("cannot follow links")?;

    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let mut state = State::new(links.clone(), snapshot, check);
    thread::Builder::new()
        .name("links".to_owned())
        .spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(event) = consumer.poll(POLL) {
                    state.handle(event);
                }
                state.learn_cluster(&consumer);
                state.report_age();
            }
        })
        .context("cannot start the thread that follows links")?;
    Ok(Follower { stop })
}

/// Returns the consumer's settings.
fn settings(config: &kafka::KafkaConfig) -> ClientConfig {
    let mut client = config.client_config("ingest-links");
    client
        // librdkafka requires a group for assign(). The consumer never joins it or commits to it.
        .set("group.id", config.topic("ingest-links"))
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        // Offsets have gaps from compaction and transactions, so only this event shows that the end was reached.
        .set("enable.partition.eof", "true")
        .set("allow.auto.create.topics", "false")
        // Bounds the memory for fetched records.
        .set("queued.max.messages.kbytes", "16384")
        // How long fetching pauses when that is full. The default, a second, would slow the start many times.
        .set("fetch.queue.backoff.ms", "20");
    client
}

struct State {
    links: Links,
    /// The table that records are applied to. While a snapshot or an earlier table is served, a separate one.
    table: Arc<Table>,
    /// The origin of the served snapshot, while one is served.
    snapshot: Option<Origin>,
    last_offset: Option<i64>,
    check: Check,
    started: Instant,
    age_reported: Option<Instant>,
    skipped: Skipped,
    live: Gauge,
}

impl State {
    fn new(links: Links, snapshot: Option<Origin>, check: Check) -> Self {
        // Without a snapshot, links are served as soon as they are read.
        let table = if snapshot.is_some() { Arc::default() } else { links.table() };
        if snapshot.is_none() {
            check.unready("loading links");
        }
        Self {
            links,
            table,
            snapshot,
            last_offset: None,
            check,
            started: Instant::now(),
            age_reported: None,
            skipped: Skipped::default(),
            live: gauge!("hopline_links"),
        }
    }

    fn handle(&mut self, event: Result<BorrowedMessage<'_>, KafkaError>) {
        match event {
            Ok(message) => self.apply(&message),
            Err(KafkaError::PartitionEOF(_)) => self.caught_up(),
            // librdkafka retries, and its context has logged the error. Loaded links remain valid.
            Err(error) if !self.check.is_ready() => self.check.unready(format!("loading links: {error}")),
            Err(_) => {}
        }
    }

    fn apply(&mut self, message: &BorrowedMessage<'_>) {
        let offset = message.offset();
        if self.last_offset.is_some_and(|last| offset <= last) {
            self.restart();
        }
        self.last_offset = Some(offset);
        let key = message.key().unwrap_or_default();
        if let Err(error) = self.table.apply(key, message.payload()) {
            self.skipped.record(offset, &error);
            if self.is_served() && self.links.is_caught_up() {
                self.check.ready_with(self.skipped.detail());
            }
        }
        if self.is_served() {
            self.live.set(self.table.len() as f64);
        }
    }

    /// Starts with an empty table. Offsets only decrease if the topic was deleted and created again.
    fn restart(&mut self) {
        tracing::warn!("topic links was created again; serving the known links until it has been read");
        self.table = Arc::default();
        self.skipped = Skipped::default();
        self.started = Instant::now();
    }

    fn is_served(&self) -> bool {
        Arc::ptr_eq(&self.table, &self.links.table())
    }

    /// Serves the table when the end of the topic is reached for the first time.
    fn caught_up(&mut self) {
        if self.is_served() && self.links.is_caught_up() {
            return;
        }
        let has_lost_records = self.table.known() == 0 && self.links.table().known() > 0;
        if let Some(origin) = self.snapshot.as_ref().filter(|_| has_lost_records) {
            // Deleted links have a record too, so a topic that is empty now has lost its records.
            let age = snapshot::age(origin.written_at);
            self.check.unready(format!("topic links is empty; serving a snapshot of {age} ago"));
            return;
        }
        let (links, millis) = (self.table.len(), self.started.elapsed().as_millis() as u64);
        tracing::info!(links, millis, "loaded {links} links in {millis} ms");
        self.snapshot = None;
        self.links.serve(Arc::clone(&self.table));
        self.links.shared.caught_up.store(true, Ordering::Release);
        self.live.set(links as f64);
        self.check.ready_with(self.skipped.detail());
    }

    /// Stores the id of the Kafka cluster, and stops serving a snapshot of another cluster.
    fn learn_cluster(&mut self, consumer: &Consumer) {
        let known = &self.links.shared.cluster_id;
        if known.get().is_some() {
            return;
        }
        // Without waiting: reads the id from the last metadata response.
        let Some(cluster_id) = consumer.client().fetch_cluster_id(Duration::ZERO) else { return };
        let foreign = self.snapshot.take_if(|origin| {
            origin.cluster_id.as_ref().is_some_and(|of_snapshot| *of_snapshot != cluster_id)
        });
        if let Some(origin) = foreign {
            let written_at = schemas::time::text(origin.written_at);
            tracing::error!(
                "ignored the link snapshot written at {written_at}: it is of another Kafka cluster"
            );
            self.links.serve(Arc::clone(&self.table));
            if !self.links.is_caught_up() {
                self.check.unready("loading links");
            }
        }
        known.get_or_init(|| cluster_id);
    }

    fn report_age(&mut self) {
        let Some(origin) = &self.snapshot else { return };
        // An unready check reports that the topic is empty, which is more important.
        let reported =
            self.age_reported.is_some_and(|at| at.elapsed() < AGE_INTERVAL || !self.check.is_ready());
        if !reported {
            self.age_reported = Some(Instant::now());
            let age = snapshot::age(origin.written_at);
            self.check.ready_with(format!("from a snapshot of {age} ago, until Kafka has been read"));
        }
    }
}

/// Records that could not be applied.
struct Skipped {
    malformed: u64,
    unknown_version: u64,
    /// The versions that were logged.
    versions: BTreeSet<u64>,
    log_limit: LogLimit,
    malformed_total: Counter,
    unknown_version_total: Counter,
}

impl Default for Skipped {
    fn default() -> Self {
        let total = |reason| counter!("hopline_links_unreadable_total", "reason" => reason);
        Self {
            malformed: 0,
            unknown_version: 0,
            versions: BTreeSet::new(),
            log_limit: LogLimit::default(),
            malformed_total: total("malformed"),
            unknown_version_total: total("unknown_version"),
        }
    }
}

impl Skipped {
    fn record(&mut self, offset: i64, error: &RecordError) {
        if let RecordError::Decode(DecodeError::UnknownVersion(version)) = error {
            self.unknown_version += 1;
            self.unknown_version_total.increment(1);
            if self.versions.len() < 100 && self.versions.insert(*version) {
                tracing::error!(
                    offset,
                    version,
                    "skipped the record of topic links at offset {offset}: this build does not know version \
                     {version}; further records of this version are skipped without a log line"
                );
            }
            return;
        }
        self.malformed += 1;
        self.malformed_total.increment(1);
        if self.log_limit.is_due() {
            tracing::error!(offset, "skipped the record of topic links at offset {offset}: {error}");
        }
    }

    /// Returns the readiness detail for the time after the topic has been read.
    fn detail(&self) -> String {
        match (self.unknown_version, self.malformed) {
            (0, 0) => "ok".to_owned(),
            (unknown, 0) => format!("ok, but skipped {unknown} records of an unknown version"),
            (0, malformed) => format!("ok, but skipped {malformed} unreadable records"),
            (unknown, malformed) => format!(
                "ok, but skipped {unknown} records of an unknown version and {malformed} unreadable ones"
            ),
        }
    }
}
