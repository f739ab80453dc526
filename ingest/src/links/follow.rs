//! Following topic `links` from its beginning, for as long as the process lives.

use std::{
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
use schemas::topic;
use service::{Check, kafka};

use super::Writer;

/// How long one poll waits, and so how long a stop may take.
const POLL: Duration = Duration::from_millis(100);

/// Least time between two log lines about unreadable records.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

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
/// # Errors
/// When the consumer's settings are refused, or no thread can be started.
pub fn start(config: &kafka::KafkaConfig, writer: Writer, check: Check) -> anyhow::Result<Follower> {
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
    check.unready("loading links");

    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let mut follow = Follow {
        writer,
        check,
        started: Instant::now(),
        logged: None,
        live: gauge!("hopline_links"),
        unreadable: counter!("hopline_links_unreadable_total"),
    };
    thread::Builder::new()
        .name("links".to_owned())
        .spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(event) = consumer.poll(POLL) {
                    follow.see(event);
                }
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
        .set("allow.auto.create.topics", "false");
    client
}

struct Follow {
    writer: Writer,
    check: Check,
    started: Instant,
    logged: Option<Instant>,
    live: Gauge,
    unreadable: Counter,
}

impl Follow {
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
        let key = message.key().unwrap_or_default();
        if let Err(error) = self.writer.apply(key, message.payload()) {
            self.unreadable.increment(1);
            if self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                self.logged = Some(Instant::now());
                let offset = message.offset();
                tracing::error!(offset, "skipped the record of topic links at offset {offset}: {error}");
            }
        }
        self.live.set(self.writer.len() as f64);
    }

    /// The end of the topic was reached: for the first time, or again after a change.
    fn caught_up(&mut self) {
        if !self.check.is_ready() {
            let (links, millis) = (self.writer.len(), self.started.elapsed().as_millis() as u64);
            tracing::info!(links, millis, "loaded {links} links in {millis} ms");
            self.check.ready();
        }
    }
}
