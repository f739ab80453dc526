//! The thread that publishes.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use metrics::{Counter, Gauge, counter, gauge};
use rdkafka::{
    ClientConfig,
    error::{KafkaError, RDKafkaErrorCode},
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use service::Check;

use super::{
    Partitions, again,
    progress::Progress,
    reports::{Failed, Reports},
};
use crate::spool::{Next, Spool, record::Record};

/// How long the spool and the delivery reports are left alone while records are under way.
const PAUSE: Duration = Duration::from_millis(5);

/// How long the thread sleeps at most when nothing is under way.
const IDLE: Duration = Duration::from_millis(500);

/// How long a record rests that Kafka refused, and the thread after a fault of the disk or the producer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How many refused records are kept in memory before nothing new is sent.
const MAX_RETRIES: usize = 10_000;

/// How often the gauges are set.
const GAUGES_INTERVAL: Duration = Duration::from_secs(1);

/// How often Kafka is asked for the number of partitions.
const PARTITIONS_INTERVAL: Duration = Duration::from_secs(60);

/// Least time between two log lines about a segment that cannot be read.
const UNREADABLE_INTERVAL: Duration = Duration::from_secs(10);

/// How long Kafka may take to tell it.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a confirmed segment stays. A one-node Kafka brings clicks onto its disk each second (`flush.ms`); a
/// power loss before that takes what it has confirmed.
const RELEASE_AFTER: Duration = Duration::from_secs(2);

type Producer = BaseProducer<Reports>;

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
    retries: VecDeque<Retry>,
    gauges_at: Instant,
    partitions_at: Instant,
    unreadable_at: Instant,
    metrics: Metrics,
}

/// A refused record, and when to try again.
struct Retry {
    at: Instant,
    record: Failed,
}

struct Metrics {
    delivered: Counter,
    again: Counter,
    errors: Counter,
    damaged: Counter,
    bytes: Gauge,
    records: Gauge,
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
            spool,
            partitions,
            kafka,
            stop,
            segments: VecDeque::new(),
            next_segment: 0,
            retries: VecDeque::new(),
            gauges_at: now,
            partitions_at: now,
            unreadable_at: now,
            metrics: Metrics::register(),
        }
    }

    pub(super) fn run(mut self) {
        while let End::Broken(error) = self.publish() {
            tracing::error!("the producer of clicks failed and is replaced: {error}");
            self.metrics.errors.increment(1);
            self.retries.clear();
            self.segments.iter_mut().for_each(Progress::restart);
            self.spool.wait(RETRY_PAUSE, || self.stopped());
            if self.stopped() {
                break;
            }
        }
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
            self.segments.push_back(Progress::new(segment));
        }
    }

    /// Hands over to the producer what it takes.
    fn send(&mut self, producer: &Producer) -> Round {
        let now = Instant::now();
        while let Some(retry) = self.retries.pop_front_if(|retry| retry.at <= now) {
            let Failed { segment, partition, key, value, .. } = &retry.record;
            let record = Record { partition: *partition, key, value };
            if hand_over(producer, &self.topic, *segment, &record).is_err() {
                self.retries.push_front(retry);
                return Round::Full;
            }
            self.metrics.again.increment(1);
        }
        for progress in &mut self.segments {
            let segment = progress.segment().number();
            loop {
                if self.retries.len() >= MAX_RETRIES {
                    return Round::Full;
                }
                let (next, again) = match progress.next() {
                    Ok(next) => next,
                    Err(error) => {
                        if now >= self.unreadable_at {
                            self.unreadable_at = now + UNREADABLE_INTERVAL;
                            unreadable(segment, &error);
                        }
                        // The other segments need not wait for this one.
                        break;
                    }
                };
                match next {
                    Next::End => break,
                    Next::Damage(bytes) => {
                        self.metrics.damaged.increment(bytes as u64);
                        damaged(segment, bytes);
                        progress.skip(bytes);
                    }
                    Next::Record(found) => {
                        let record = found.record;
                        let value = if again { again::marked(record.value) } else { record.value.into() };
                        let sent = Record { value: &value, ..record };
                        match hand_over(producer, &self.topic, segment, &sent) {
                            Ok(()) => {}
                            Err(RDKafkaErrorCode::QueueFull) => return Round::Full,
                            // Refused on the spot: it waits for its next try in memory, like one that came back.
                            Err(code) => {
                                let record = Failed {
                                    segment,
                                    partition: record.partition,
                                    key: record.key.to_vec(),
                                    value: value.to_vec(),
                                    code: Some(code),
                                };
                                self.metrics.errors.increment(1);
                                self.retries.push_back(retry(record, &self.partitions));
                            }
                        }
                        if found.skipped > 0 {
                            self.metrics.damaged.increment(found.skipped as u64);
                            damaged(segment, found.skipped);
                        }
                        if again {
                            self.metrics.again.increment(1);
                        }
                        let consumed = found.consumed;
                        progress.sent(consumed);
                    }
                }
            }
        }
        Round::Empty
    }

    /// Takes the delivery reports.
    fn settle(&mut self, producer: &Producer) {
        let settled = producer.context().take();
        for (segment, count) in settled.delivered {
            self.metrics.delivered.increment(count);
            if let Some(progress) =
                self.segments.iter_mut().find(|progress| progress.segment().number() == segment)
            {
                progress.confirm(count);
            }
        }
        self.metrics.errors.increment(settled.failed.len() as u64);
        self.retries.extend(settled.failed.into_iter().map(|failed| retry(failed, &self.partitions)));
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

    /// Sets the gauges and asks for the number of partitions, each when it is due.
    fn upkeep(&mut self, producer: &Producer) {
        let now = Instant::now();
        if now >= self.gauges_at {
            self.gauges_at = now + GAUGES_INTERVAL;
            let bytes: u64 = self.segments.iter().map(|progress| progress.segment().end()).sum();
            let records: u64 = self.segments.iter().map(Progress::waiting).sum();
            self.metrics.bytes.set(bytes as f64);
            self.metrics.records.set(records as f64);
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

impl Metrics {
    fn register() -> Self {
        Self {
            delivered: counter!("hopline_clicks_delivered_total"),
            again: counter!("hopline_clicks_sent_again_total"),
            errors: counter!("hopline_click_delivery_errors_total"),
            damaged: counter!("hopline_spool_damaged_bytes_total"),
            bytes: gauge!("hopline_spool_bytes"),
            records: gauge!("hopline_spool_records"),
        }
    }
}

/// Puts a record into the producer's queue.
fn hand_over(
    producer: &Producer,
    topic: &str,
    segment: u64,
    record: &Record<'_>,
) -> Result<(), RDKafkaErrorCode> {
    // Segments are counted from 0, a few each minute: the number fits into a pointer.
    let message = BaseRecord::with_opaque_to(topic, segment as usize)
        .partition(record.partition)
        .key(record.key)
        .payload(record.value);
    producer.send(message).map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail))
}

/// Prepares a refused record for its next try.
fn retry(mut record: Failed, partitions: &Partitions) -> Retry {
    record.value = again::marked(&record.value).into_owned();
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

/// Serves every delivery report that is there, without waiting for more: a poll that waits stays busy for the last
/// millisecond of its time, and one that does not wait serves a single batch of reports.
fn serve_reports(producer: &Producer) {
    loop {
        let waiting = producer.in_flight_count();
        producer.poll(Duration::ZERO);
        if producer.in_flight_count() == waiting {
            return;
        }
    }
}
