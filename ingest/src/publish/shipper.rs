//! The shipper: the thread that publishes the clicks in the spool.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use chrono::Utc;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;
use schemas::message::mark_again;
use service::traces::Tracer;
use service::{Check, LogLimit};

use crate::publish::metrics::Metrics;
use crate::publish::partitions::Partitions;
use crate::publish::producer::{Producer, collect_reports, enqueue};
use crate::publish::progress::{Progress, ReadRecord, RecordState};
use crate::publish::reports::{FailedRecord, Outcomes, RecordId, Reports};
use crate::spool::record::Record;
use crate::spool::{Next, Spool};

/// The niceness of this thread and the producer's threads, which inherit it, so that answering visitors has priority.
/// At full load on two cores, publishing still keeps up.
const NICENESS: i32 = 10;

/// How long the thread sleeps between two rounds while records are in flight.
const PAUSE: Duration = Duration::from_millis(10);

/// How long the thread sleeps at most when no record is in flight.
const IDLE: Duration = Duration::from_millis(500);

/// How long to wait before a record that Kafka rejected is sent again, and after the producer failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How many rejected records are kept in memory before no new ones are sent.
const MAX_RETRIES: usize = 10_000;

/// How often confirmations are written to the disk. After a kill, the records in flight and those confirmed since the
/// last writing are sent again.
const CONFIRMED_INTERVAL: Duration = Duration::from_millis(50);

/// How often the gauges are set.
const GAUGES_INTERVAL: Duration = Duration::from_secs(1);

/// How often the number of partitions is fetched from Kafka.
const PARTITIONS_INTERVAL: Duration = Duration::from_secs(60);

/// The timeout for fetching the number of partitions.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a confirmed segment is kept. A one-node Kafka syncs clicks to its disk each second (`flush.ms`); a power
/// loss before that loses clicks that it has confirmed.
const DELETE_DELAY: Duration = Duration::from_secs(2);

/// The state of the thread.
pub(super) struct Shipper {
    client: ClientConfig,
    topic: String,
    spool: Arc<Spool>,
    partitions: Arc<Partitions>,
    kafka: Check,
    /// The deadline, once a stop is requested.
    stop: Arc<OnceLock<Instant>>,
    segments: VecDeque<Progress>,
    next_segment: u64,
    next_ordinal: u32,
    retries: VecDeque<Retry>,
    /// Memory that is reused for delivery reports.
    outcomes: Outcomes,
    next_confirmed: Instant,
    next_gauges: Instant,
    next_partitions: Instant,
    read_log: LogLimit,
    write_log: LogLimit,
    metrics: Metrics,
    tracer: Tracer,
}

/// A rejected record, and when to send it again.
struct Retry {
    at: Instant,
    record: FailedRecord,
}

/// Why publishing with a producer ended.
enum End {
    Stopped,
    /// The producer failed and must be replaced.
    Failed(KafkaError),
}

/// The result of [`Shipper::send`].
#[derive(PartialEq, Eq)]
enum Sent {
    /// All records were sent.
    All,
    /// The producer's queue or the memory for retries is full.
    UntilFull,
}

impl Shipper {
    pub(super) fn new(
        client: ClientConfig,
        topic: String,
        spool: Arc<Spool>,
        partitions: Arc<Partitions>,
        kafka: Check,
        stop: Arc<OnceLock<Instant>>,
        tracer: Tracer,
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
            outcomes: Outcomes::default(),
            next_confirmed: now,
            next_gauges: now,
            next_partitions: now,
            read_log: LogLimit::default(),
            write_log: LogLimit::default(),
            tracer,
        }
    }

    pub(super) fn run(mut self) {
        // On Linux this sets the priority of the calling thread only.
        if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
            tracing::warn!(
                "cannot lower the priority of publishing clicks, which may slow down answers: {error}"
            );
        }
        while let End::Failed(error) = self.publish() {
            tracing::error!("the producer of clicks failed and is replaced: {error}");
            self.metrics.errors.increment(1);
            self.retries.clear();
            for progress in &mut self.segments {
                if let Err(error) = progress.restart() {
                    let segment = progress.segment().number();
                    tracing::error!(
                        segment,
                        "cannot remove the confirmations of segment {segment} of the spool: {error}"
                    );
                }
            }
            self.spool.wait(RETRY_PAUSE, || self.stopped());
            if self.stopped() {
                break;
            }
        }
        self.write_confirmed();
        let clicks: u64 = self.segments.iter().map(Progress::unconfirmed).sum();
        if clicks > 0 {
            tracing::warn!(clicks, "{clicks} unconfirmed clicks stay in the spool for the next start");
        }
    }

    /// Publishes with one producer until it fails or a stop is requested.
    fn publish(&mut self) -> End {
        let producer: Producer = match self.client.create_with_context(Reports::new(self.tracer.clone())) {
            Ok(producer) => producer,
            Err(error) => return End::Failed(error),
        };
        loop {
            // First, because nothing is appended after the stop, so that `add_segments` then finds all segments.
            let stopped = self.stopped();
            self.add_segments();
            let sent = self.send(&producer);
            let in_flight = self.segments.iter().any(|progress| progress.in_flight() > 0);
            collect_reports(&producer);
            if in_flight || sent == Sent::UntilFull {
                // Not `Spool::wait`, which returns immediately under load.
                thread::sleep(PAUSE);
            } else {
                self.spool.wait(IDLE, || {
                    self.stopped()
                        || self.segments.iter().any(Progress::has_unread)
                        || !self.spool.segments_from(self.next_segment).is_empty()
                });
            }
            self.apply_reports(&producer);
            self.delete_complete();
            self.run_periodic_work(&producer);
            if let Some((code, reason)) = producer.client().fatal_error() {
                tracing::error!("fatal error of the producer of clicks: {reason}");
                return End::Failed(KafkaError::MessageProduction(code));
            }
            // While Kafka is down, waiting would only delay the stop. The spool keeps the clicks.
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

    /// Adds the segments that were created since the last call.
    fn add_segments(&mut self) {
        for segment in self.spool.segments_from(self.next_segment) {
            self.next_segment = segment.number() + 1;
            self.segments.push_back(Progress::new(segment, self.next_ordinal, &self.spool));
            // Cannot overflow: there are a few segments per minute.
            self.next_ordinal += 1;
        }
    }

    /// Passes records to the producer until all are sent or its queue is full.
    fn send(&mut self, producer: &Producer) -> Sent {
        let now = Instant::now();
        while let Some(retry) = self.retries.pop_front_if(|retry| retry.at <= now) {
            let FailedRecord { id, partition, key, value, .. } = &retry.record;
            if enqueue(producer, &self.topic, *id, *partition, key, value).is_err() {
                self.retries.push_front(retry);
                return Sent::UntilFull;
            }
            self.metrics.again.increment(1);
        }
        for progress in &mut self.segments {
            let segment = progress.segment().number();
            let ordinal = progress.ordinal();
            loop {
                if self.retries.len() >= MAX_RETRIES {
                    return Sent::UntilFull;
                }
                let (next, state) = match progress.next() {
                    Ok(next) => next,
                    Err(error) => {
                        if self.read_log.is_due() {
                            tracing::error!(segment, "cannot read segment {segment} of the spool: {error}");
                        }
                        // Continues with the next segment.
                        break;
                    }
                };
                let found = match next {
                    Next::End => break,
                    Next::Damage(bytes) => {
                        self.metrics.damaged_bytes.increment(bytes as u64);
                        log_damage(segment, bytes);
                        progress.skip(bytes);
                        continue;
                    }
                    Next::Record(found) => found,
                };
                if state != RecordState::Confirmed {
                    let Record { partition, key, value, .. } = found.record;
                    let again = state == RecordState::PossibleRepeat;
                    let value = if again { mark_again(value) } else { value.into() };
                    let id = RecordId::new(ordinal, found.index);
                    match enqueue(producer, &self.topic, id, partition, key, &value) {
                        Ok(()) => {}
                        Err(RDKafkaErrorCode::QueueFull) => return Sent::UntilFull,
                        // Retried from memory, like a record that Kafka rejected.
                        Err(code) => {
                            let (key, value, code) = (key.to_vec(), value.into_owned(), Some(code));
                            let record = FailedRecord { id, partition, key, value, code };
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
                    log_damage(segment, found.skipped);
                }
                let record = ReadRecord::from(&found);
                let missing = progress.advance(record, state != RecordState::Confirmed);
                if missing > 0 {
                    self.metrics.damaged_records.increment(missing.into());
                }
            }
        }
        Sent::All
    }

    /// Applies the delivery reports since the last call.
    fn apply_reports(&mut self, producer: &Producer) {
        let mut outcomes = producer.context().take(std::mem::take(&mut self.outcomes));
        self.metrics.delivered.increment(outcomes.delivered.len() as u64);
        for id in &outcomes.delivered {
            // Always found, because a segment is kept until all its records are confirmed.
            if let Ok(index) = self.segments.binary_search_by_key(&id.segment(), Progress::ordinal) {
                self.segments[index].confirm(id.index());
            }
        }
        self.metrics.errors.increment(outcomes.failed.len() as u64);
        self.retries.extend(outcomes.failed.drain(..).map(|failed| retry(failed, &self.partitions)));
        self.outcomes = outcomes;
    }

    /// Writes the confirmations of all segments to the disk.
    fn write_confirmed(&mut self) {
        for progress in &mut self.segments {
            if let Err(error) = progress.write()
                && self.write_log.is_due()
            {
                let segment = progress.segment().number();
                tracing::error!(
                    segment,
                    "cannot write the confirmations of segment {segment} of the spool: {error}"
                );
            }
        }
    }

    /// Deletes the segments whose records are all confirmed.
    fn delete_complete(&mut self) {
        let spool = &self.spool;
        self.segments.retain_mut(|progress| {
            if !progress.is_complete(DELETE_DELAY) {
                return true;
            }
            if let Err(error) = spool.delete(progress.segment()) {
                let segment = progress.segment().number();
                tracing::error!(segment, "cannot delete segment {segment} of the spool: {error}");
            }
            false
        });
    }

    fn set_gauges(&mut self) {
        let records: u64 = self.segments.iter().map(Progress::unconfirmed).sum();
        let oldest = self.segments.iter_mut().filter_map(Progress::oldest_unconfirmed).min();
        let age = oldest.map_or(0, |at| Utc::now().timestamp_millis().saturating_sub(at).max(0));
        self.metrics.bytes.set(self.spool.bytes() as f64);
        self.metrics.segments.set(self.segments.len() as f64);
        self.metrics.records.set(records as f64);
        self.metrics.oldest.set(age as f64 / 1_000.0);
    }

    /// Writes the confirmations, sets the gauges and fetches the number of partitions, each when it is due.
    fn run_periodic_work(&mut self, producer: &Producer) {
        let now = Instant::now();
        // With no record in flight, the thread may sleep for long before the next call.
        if now >= self.next_confirmed || self.segments.iter().all(|progress| progress.in_flight() == 0) {
            self.next_confirmed = now + CONFIRMED_INTERVAL;
            self.write_confirmed();
        }
        if now >= self.next_gauges {
            self.next_gauges = now + GAUGES_INTERVAL;
            self.set_gauges();
        }
        // Only while Kafka answers, because this blocks the thread.
        if now >= self.next_partitions && self.kafka.is_ready() {
            self.next_partitions = now + PARTITIONS_INTERVAL;
            if let Ok(metadata) = producer.client().fetch_metadata(Some(&self.topic), METADATA_TIMEOUT)
                && let Some(topic) = metadata.topics().first()
            {
                self.partitions.set(topic.partitions().len());
            }
        }
    }
}

/// Marks a rejected record as a possible repeat, to be sent again after a pause.
fn retry(mut record: FailedRecord, partitions: &Partitions) -> Retry {
    record.value = mark_again(&record.value).into_owned();
    // The partition was chosen before the number of partitions was known. It does not exist, so it cannot contain the
    // original either.
    if matches!(
        record.code,
        Some(RDKafkaErrorCode::UnknownPartition | RDKafkaErrorCode::UnknownTopicOrPartition)
    ) {
        record.partition = partitions.for_click_id(&record.key);
    }
    Retry { at: Instant::now() + RETRY_PAUSE, record }
}

fn log_damage(segment: u64, bytes: usize) {
    tracing::error!(segment, bytes, "skipped {bytes} damaged bytes in segment {segment} of the spool");
}
