//! The thread that publishes.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{io, thread};

use chrono::Utc;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;
use schemas::message::mark_again;
use service::Check;

use super::Partitions;
use super::measures::Metrics;
use super::producer::{Producer, hand_over, serve_reports};
use super::progress::{Passed, Progress, Standing};
use super::reports::{Failed, Reports, Settled, Ticket};
use crate::spool::record::Record;
use crate::spool::{Next, Spool};

/// The thread's priority, which those of the producer inherit: where cores are scarce, visitors are answered first. At full
/// load on two cores, shipping still keeps up.
const NICENESS: i32 = 10;

/// How long the spool and the delivery reports are left alone while records are under way.
const PAUSE: Duration = Duration::from_millis(10);

/// How long the thread sleeps at most when nothing is under way.
const IDLE: Duration = Duration::from_millis(500);

/// How long a record rests that Kafka refused, and the thread after a fault of the disk or the producer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How many refused records are kept in memory before nothing new is sent.
const MAX_RETRIES: usize = 10_000;

/// How often it is written down which records are confirmed. A killed edge sends again what was under way and what
/// was confirmed since the last time.
const CONFIRMED_INTERVAL: Duration = Duration::from_millis(50);

/// How often the gauges are set.
const GAUGES_INTERVAL: Duration = Duration::from_secs(1);

/// How often Kafka is asked for the number of partitions.
const PARTITIONS_INTERVAL: Duration = Duration::from_secs(60);

/// Least time between two log lines about one kind of fault of the disk.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How long Kafka may take to tell it.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a confirmed segment stays. A one-node Kafka brings clicks onto its disk each second (`flush.ms`); a
/// power loss before that takes what it has confirmed.
const RELEASE_AFTER: Duration = Duration::from_secs(2);

/// What the thread knows.
pub(super) struct Shipper {
    client: ClientConfig,
    topic: String,
    spool: Arc<Spool>,
    partitions: Arc<Partitions>,
    kafka: Check,
    /// Until when to go on, once a stop is requested.
    stop: Arc<OnceLock<Instant>>,
    segments: VecDeque<Progress>,
    next_segment: u64,
    next_ordinal: u32,
    retries: VecDeque<Retry>,
    /// Emptied, to be filled with the next reports.
    settled: Settled,
    confirmed_at: Instant,
    gauges_at: Instant,
    partitions_at: Instant,
    unreadable_at: Instant,
    unwritten_at: Instant,
    metrics: Metrics,
}

/// A refused record, and when to try again.
struct Retry {
    at: Instant,
    record: Failed,
}

/// Why the life of one producer ended.
enum End {
    Stopped,
    /// It can go on no more; what is unconfirmed is for another one.
    Broken(KafkaError),
}

/// How a round of sending ended.
#[derive(PartialEq, Eq)]
enum Round {
    /// There is nothing more to send.
    Empty,
    /// More cannot be sent now.
    Full,
}

impl Shipper {
    pub(super) fn new(
        client: ClientConfig,
        topic: String,
        spool: Arc<Spool>,
        partitions: Arc<Partitions>,
        kafka: Check,
        stop: Arc<OnceLock<Instant>>,
    ) -> Self {
        let now = Instant::now();
        Self {
            client,
            topic,
            metrics: Metrics::register(&spool),
            spool,
            partitions,
            kafka,
            stop,
            segments: VecDeque::new(),
            next_segment: 0,
            next_ordinal: 0,
            retries: VecDeque::new(),
            settled: Settled::default(),
            confirmed_at: now,
            gauges_at: now,
            partitions_at: now,
            unreadable_at: now,
            unwritten_at: now,
        }
    }

    pub(super) fn run(mut self) {
        // Of this thread alone: what Linux calls a process here is a thread.
        if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
            tracing::warn!("clicks are published with the priority of answers: {error}");
        }
        while let End::Broken(error) = self.publish() {
            tracing::error!("the producer of clicks failed and is replaced: {error}");
            self.metrics.errors.increment(1);
            self.retries.clear();
            for progress in &mut self.segments {
                if let Err(error) = progress.restart() {
                    let number = progress.segment().number();
                    tracing::error!(
                        segment = number,
                        "cannot forget what was confirmed of segment {number}: {error}"
                    );
                }
            }
            self.spool.wait(RETRY_PAUSE, || self.stopped());
            if self.stopped() {
                break;
            }
        }
        self.write_confirmed();
        let left: u64 = self.segments.iter().map(Progress::waiting).sum();
        if left > 0 {
            tracing::warn!(clicks = left, "{left} clicks stay in the spool for the next start");
        }
    }

    /// Publishes with one producer until it breaks or a stop is requested.
    fn publish(&mut self) -> End {
        let producer: Producer = match self.client.create_with_context(Reports::default()) {
            Ok(producer) => producer,
            Err(error) => return End::Broken(error),
        };
        loop {
            // Asked first: nothing is appended after the stop, so what is adopted below is everything then.
            let stopped = self.stopped();
            self.adopt();
            let round = self.send(&producer);
            let under_way = self.segments.iter().any(|progress| progress.under_way() > 0);
            serve_reports(&producer);
            if under_way || round == Round::Full {
                // Not a wait for news: under load there always is some.
                thread::sleep(PAUSE);
            } else {
                self.spool.wait(IDLE, || {
                    self.stopped()
                        || self.segments.iter().any(Progress::has_news)
                        || !self.spool.segments_from(self.next_segment).is_empty()
                });
            }
            self.settle(&producer);
            self.release();
            self.upkeep(&producer);
            if let Some((code, reason)) = producer.client().fatal_error() {
                tracing::error!("librdkafka gave up: {reason}");
                return End::Broken(KafkaError::MessageProduction(code));
            }
            // With Kafka down, waiting would only delay the stop: the spool keeps the clicks.
            if stopped && (self.segments.is_empty() || self.is_late() || !self.kafka.is_ready()) {
                return End::Stopped;
            }
        }
    }

    fn stopped(&self) -> bool {
        self.stop.get().is_some()
    }

    fn is_late(&self) -> bool {
        self.stop.get().is_some_and(|deadline| Instant::now() >= *deadline)
    }

    /// Takes up the segments that were begun since the last look.
    fn adopt(&mut self) {
        for segment in self.spool.segments_from(self.next_segment) {
            self.next_segment = segment.number() + 1;
            self.segments.push_back(Progress::new(segment, self.next_ordinal, &self.spool));
            // A few each minute: they last for centuries.
            self.next_ordinal += 1;
        }
    }

    /// Hands over to the producer what it takes.
    fn send(&mut self, producer: &Producer) -> Round {
        let now = Instant::now();
        while let Some(retry) = self.retries.pop_front_if(|retry| retry.at <= now) {
            let Failed { ticket, partition, key, value, .. } = &retry.record;
            if hand_over(producer, &self.topic, *ticket, *partition, key, value).is_err() {
                self.retries.push_front(retry);
                return Round::Full;
            }
            self.metrics.again.increment(1);
        }
        for progress in &mut self.segments {
            let segment = progress.segment().number();
            let ordinal = progress.ordinal();
            loop {
                if self.retries.len() >= MAX_RETRIES {
                    return Round::Full;
                }
                let (next, standing) = match progress.next() {
                    Ok(next) => next,
                    Err(error) => {
                        if now >= self.unreadable_at {
                            self.unreadable_at = now + LOG_INTERVAL;
                            unreadable(segment, &error);
                        }
                        // The other segments need not wait for this one.
                        break;
                    }
                };
                let found = match next {
                    Next::End => break,
                    Next::Damage(bytes) => {
                        self.metrics.damaged_bytes.increment(bytes as u64);
                        damaged(segment, bytes);
                        progress.skip(bytes);
                        continue;
                    }
                    Next::Record(found) => found,
                };
                if standing != Standing::Confirmed {
                    let Record { partition, key, value, .. } = found.record;
                    let again = standing == Standing::Again;
                    let value = if again { mark_again(value) } else { value.into() };
                    let ticket = Ticket::new(ordinal, found.index);
                    match hand_over(producer, &self.topic, ticket, partition, key, &value) {
                        Ok(()) => {}
                        Err(RDKafkaErrorCode::QueueFull) => return Round::Full,
                        // Refused on the spot: it waits for its next try in memory, like one that came back.
                        Err(code) => {
                            let (key, value, code) = (key.to_vec(), value.into_owned(), Some(code));
                            let record = Failed { ticket, partition, key, value, code };
                            self.metrics.errors.increment(1);
                            self.retries.push_back(retry(record, &self.partitions));
                        }
                    }
                    if again {
                        self.metrics.again.increment(1);
                    }
                }
                if found.skipped > 0 {
                    self.metrics.damaged_bytes.increment(found.skipped as u64);
                    damaged(segment, found.skipped);
                }
                let passed = Passed::from(&found);
                let missing = progress.pass(passed, standing != Standing::Confirmed);
                if missing > 0 {
                    self.metrics.damaged_records.increment(missing.into());
                }
            }
        }
        Round::Empty
    }

    /// Takes the delivery reports.
    fn settle(&mut self, producer: &Producer) {
        let mut settled = producer.context().take(std::mem::take(&mut self.settled));
        self.metrics.delivered.increment(settled.delivered.len() as u64);
        for ticket in &settled.delivered {
            // A segment stays until each of its records is confirmed, so it is there.
            if let Ok(place) = self.segments.binary_search_by_key(&ticket.segment(), Progress::ordinal) {
                self.segments[place].confirm(ticket.index());
            }
        }
        self.metrics.errors.increment(settled.failed.len() as u64);
        self.retries.extend(settled.failed.drain(..).map(|failed| retry(failed, &self.partitions)));
        self.settled = settled;
    }

    /// Writes down which records are confirmed.
    fn write_confirmed(&mut self) {
        let now = Instant::now();
        for progress in &mut self.segments {
            if let Err(error) = progress.write()
                && now >= self.unwritten_at
            {
                self.unwritten_at = now + LOG_INTERVAL;
                let number = progress.segment().number();
                tracing::error!(
                    segment = number,
                    "cannot note what is confirmed of segment {number}: {error}"
                );
            }
        }
    }

    /// Deletes the segments that Kafka has.
    fn release(&mut self) {
        let spool = &self.spool;
        self.segments.retain_mut(|progress| {
            if !progress.is_over(RELEASE_AFTER) {
                return true;
            }
            let segment = progress.segment();
            if let Err(error) = spool.delete(segment) {
                let number = segment.number();
                tracing::error!(segment = number, "cannot delete segment {number} of the spool: {error}");
            }
            false
        });
    }

    fn set_gauges(&mut self) {
        let records: u64 = self.segments.iter().map(Progress::waiting).sum();
        let oldest = self.segments.iter_mut().filter_map(Progress::oldest_waiting).min();
        let age = oldest.map_or(0, |at| Utc::now().timestamp_millis().saturating_sub(at).max(0));
        self.metrics.bytes.set(self.spool.bytes() as f64);
        self.metrics.segments.set(self.segments.len() as f64);
        self.metrics.records.set(records as f64);
        self.metrics.oldest.set(age as f64 / 1_000.0);
    }

    /// Writes down what is confirmed, sets the gauges and asks for the number of partitions, each when it is due.
    fn upkeep(&mut self, producer: &Producer) {
        let now = Instant::now();
        // With nothing under way the next look may be far.
        if now >= self.confirmed_at || self.segments.iter().all(|progress| progress.under_way() == 0) {
            self.confirmed_at = now + CONFIRMED_INTERVAL;
            self.write_confirmed();
        }
        if now >= self.gauges_at {
            self.gauges_at = now + GAUGES_INTERVAL;
            self.set_gauges();
        }
        // Asking a Kafka that is down would hold up everything here.
        if now >= self.partitions_at && self.kafka.is_ready() {
            self.partitions_at = now + PARTITIONS_INTERVAL;
            if let Ok(metadata) = producer.client().fetch_metadata(Some(&self.topic), METADATA_TIMEOUT)
                && let Some(topic) = metadata.topics().first()
            {
                self.partitions.set(topic.partitions().len());
            }
        }
    }
}

/// Prepares a refused record for its next try.
fn retry(mut record: Failed, partitions: &Partitions) -> Retry {
    record.value = mark_again(&record.value).into_owned();
    // Chosen while Kafka was down, by a guess. A partition that does not exist cannot hold the original.
    if matches!(
        record.code,
        Some(RDKafkaErrorCode::UnknownPartition | RDKafkaErrorCode::UnknownTopicOrPartition)
    ) {
        record.partition = partitions.of(&record.key);
    }
    Retry { at: Instant::now() + RETRY_PAUSE, record }
}

fn damaged(segment: u64, bytes: usize) {
    tracing::error!(segment, bytes, "skipped {bytes} damaged bytes in segment {segment} of the spool");
}

fn unreadable(segment: u64, error: &io::Error) {
    tracing::error!(segment, "cannot read segment {segment} of the spool: {error}");
}
