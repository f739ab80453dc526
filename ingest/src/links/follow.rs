//! Following topic `links` from its beginning, for as long as the process lives.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use metrics::{Counter, Gauge, counter, gauge};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaError,
    message::BorrowedMessage,
};
use schemas::{message::DecodeError, topic};
use service::{Check, kafka};

use super::{
    Links, Table, Unreadable,
    snapshot::{self, Origin},
};

/// How long one poll waits, and so how long a stop may take.
const POLL: Duration = Duration::from_millis(100);

/// Least time between two log lines about unreadable records.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How often the age of a snapshot is told anew.
const AGE_INTERVAL: Duration = Duration::from_secs(1);

type Consumer = BaseConsumer<kafka::Context>;

/// The thread that follows the topic; it ends when this is dropped.
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

/// Starts to apply the topic's records to the links; `check` is ready once all have been seen.
///
/// With links of a `snapshot` the check is ready at once, and says how old they are. They are served until all
/// records of the topic have been seen.
///
/// # Errors
/// When the consumer's settings are refused, or no thread can be started.
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
    // Assigned and not subscribed: every edge needs every link.
    let mut assignment = TopicPartitionList::new();
    assignment
        .add_partition_offset(&topic, 0, Offset::Beginning)
        .and_then(|()| consumer.assign(&assignment))
        .context("cannot follow links")?;

    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let mut follow = Follow::new(links.clone(), snapshot, check);
    thread::Builder::new()
        .name("links".to_owned())
        .spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(event) = consumer.poll(POLL) {
                    follow.see(event);
                }
                follow.learn_cluster(&consumer);
                follow.tell_age();
            }
        })
        .context("cannot start the thread that follows links")?;
    Ok(Follower { stop })
}

/// Returns the consumer's settings.
fn settings(config: &kafka::KafkaConfig) -> ClientConfig {
    let mut client = config.client_config("ingest-links");
    client
        // Never joined, never committed to: librdkafka assigns nothing without a name.
        .set("group.id", config.topic("ingest-links"))
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        // The only way to know that everything was seen: compaction and transactions leave holes in the offsets.
        .set("enable.partition.eof", "true")
        .set("allow.auto.create.topics", "false")
        // What waits here to be applied is memory that no link needs.
        .set("queued.max.messages.kbytes", "16384")
        // When that is full, nothing is fetched for so long; by default a second, which is many times a start's work.
        .set("fetch.queue.backoff.ms", "20");
    client
}

struct Follow {
    links: Links,
    /// What records are applied to: another table than the served one, until it takes that one's place.
    table: Arc<Table>,
    /// What the served links are of, while they are a snapshot's.
    snapshot: Option<Origin>,
    /// The offset of the last record.
    last: Option<i64>,
    check: Check,
    started: Instant,
    age_told: Option<Instant>,
    skipped: Skipped,
    live: Gauge,
}

impl Follow {
    fn new(links: Links, snapshot: Option<Origin>, check: Check) -> Self {
        // Without a snapshot links redirect as soon as they come.
        let table = if snapshot.is_some() { Arc::default() } else { links.table() };
        if snapshot.is_none() {
            check.unready("loading links");
        }
        Self {
            links,
            table,
            snapshot,
            last: None,
            check,
            started: Instant::now(),
            age_told: None,
            skipped: Skipped::default(),
            live: gauge!("hopline_links"),
        }
    }

    fn see(&mut self, event: Result<BorrowedMessage<'_>, KafkaError>) {
        match event {
            Ok(message) => self.apply(&message),
            Err(KafkaError::PartitionEOF(_)) => self.caught_up(),
            // librdkafka goes on by itself, and its context has logged it. What is loaded stays good.
            Err(error) if !self.check.is_ready() => self.check.unready(format!("loading links: {error}")),
            Err(_) => {}
        }
    }

    fn apply(&mut self, message: &BorrowedMessage<'_>) {
        let offset = message.offset();
        if self.last.is_some_and(|last| offset <= last) {
            self.start_again();
        }
        self.last = Some(offset);
        let key = message.key().unwrap_or_default();
        match self.table.apply(key, message.payload()) {
            Ok(_) => {}
            Err(error) => {
                self.skipped.note(offset, &error);
                if self.is_served() && self.links.is_caught_up() {
                    self.check.ready_with(self.skipped.detail());
                }
            }
        }
        if self.is_served() {
            self.live.set(self.table.len() as f64);
        }
    }

    /// Offsets never run backwards: the topic was made anew, and what it says now is all there is.
    fn start_again(&mut self) {
        tracing::warn!("topic links begins anew; the links are served as they are until it has been read");
        self.table = Arc::default();
        self.skipped = Skipped::default();
        self.started = Instant::now();
    }

    fn is_served(&self) -> bool {
        Arc::ptr_eq(&self.table, &self.links.table())
    }

    /// The end of the topic was reached: for the first time, or again after a change.
    fn caught_up(&mut self) {
        if self.is_served() && self.links.is_caught_up() {
            return;
        }
        if let Some(origin) = self.snapshot.as_ref().filter(|_| self.table.known() == 0) {
            // Nothing is ever taken from the topic: deleted links have a record too. An empty one has lost everything.
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

    /// Notes which Kafka this is, and stops serving a snapshot of another one.
    fn learn_cluster(&mut self, consumer: &Consumer) {
        let known = &self.links.shared.cluster_id;
        if known.get().is_some() {
            return;
        }
        // Does not ask, only looks at what the last answer said.
        let Some(cluster_id) = consumer.client().fetch_cluster_id(Duration::ZERO) else { return };
        let foreign = self
            .snapshot
            .take_if(|origin| origin.cluster_id.as_ref().is_some_and(|snapshots| *snapshots != cluster_id));
        if let Some(origin) = foreign {
            let written_at = schemas::time::text(origin.written_at);
            tracing::error!("ignored the snapshot of links of {written_at}: it is of another Kafka cluster");
            self.links.serve(Arc::clone(&self.table));
            if !self.links.is_caught_up() {
                self.check.unready("loading links");
            }
        }
        known.get_or_init(|| cluster_id);
    }

    fn tell_age(&mut self) {
        let Some(origin) = &self.snapshot else { return };
        // An empty topic has been told of, and is worse.
        let told = self.age_told.is_some_and(|at| at.elapsed() < AGE_INTERVAL || !self.check.is_ready());
        if !told {
            self.age_told = Some(Instant::now());
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
    logged: Option<Instant>,
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
            logged: None,
            malformed_total: total("malformed"),
            unknown_version_total: total("unknown_version"),
        }
    }
}

impl Skipped {
    fn note(&mut self, offset: i64, error: &Unreadable) {
        if let Unreadable::Decode(DecodeError::UnknownVersion(version)) = error {
            self.unknown_version += 1;
            self.unknown_version_total.increment(1);
            if self.versions.len() < 100 && self.versions.insert(*version) {
                tracing::error!(
                    offset,
                    version,
                    "skipped the record of topic links at offset {offset}, and will skip others of its version \
                     {version} silently: this build does not know it"
                );
            }
            return;
        }
        self.malformed += 1;
        self.malformed_total.increment(1);
        if self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            self.logged = Some(Instant::now());
            tracing::error!(offset, "skipped the record of topic links at offset {offset}: {error}");
        }
    }

    /// Returns what `/readyz` says once the topic has been read.
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
