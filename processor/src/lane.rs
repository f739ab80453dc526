//! The pipeline of one partition: decode, gather, drop repeats, store, and only then go on.
//!
//! A lane does one thing at a time, so one insert of its source is in flight; lanes run beside each other. It
//! keeps every message since the last batch that is known to be stored, so after a loss of ownership it goes on
//! without reading the log again. Only when the log was replaced, it begins anew and asks for the log's start.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::{counter, histogram};
use schemas::clickhouse::Generation;
use schemas::row::topic_of;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::batch::{Batch, BatchRow, Batcher, Limits};
use crate::chunk::Chunk;
use crate::dead_letter::{DeadLetter, DeadLetters};
use crate::decode::{Record, borrow};
use crate::deleted_links::DeletedLinks;
use crate::lanes::{Inbound, Rewind, Status};
use crate::ownership::{BROKER_SKEW, Claim, Known, Ownership, TakeError};
use crate::repeats::{self, Remembered};
use crate::retry::{Backoff, Stopped, until_done};
use crate::store::{InsertError, Store, StoreError};

/// How long a lane waits after it was fenced: longer than a consumer's heartbeat interval, so that a process
/// which Kafka has thrown out of the group hears of it, and gives the partition back, before it takes it again.
const AFTER_FENCED: Duration = Duration::from_secs(5);

/// How often a lane that was fenced looks whether a switch to other tables has done so, and is over.
const SWITCH_LOOK: Duration = Duration::from_millis(500);

/// The longest that a lane stays away for a switch.
const LONGEST_SWITCH: Duration = Duration::from_secs(60);

/// How long a lane waits after it was refused, before it looks whether the former log is back or the new one adopted.
const AFTER_REFUSED: Duration = Duration::from_secs(10);

/// What a lane works with.
#[derive(Debug)]
pub struct Tools {
    /// The tables.
    pub store: Store,
    /// The topic of what is no click.
    pub dead_letters: DeadLetters,
    /// Whose clicks are not stored.
    pub deleted_links: DeletedLinks,
    /// When batches are cut.
    pub limits: Limits,
}

/// What a lane was waiting for.
#[derive(Debug)]
enum Heard {
    /// Records of its partition.
    Chunk(Chunk),
    /// What follows is what the rewind of this number asked for.
    Rewound(u64),
    /// Somebody doubts that the log is still the same.
    Doubt,
    /// The time has come to store what is at hand.
    Deadline,
}

/// The rows of a batch that are not stored.
pub(crate) struct Dropped {
    /// Their places, ascending.
    pub(crate) places: Vec<usize>,
    /// How many of them are clicks of deleted links; the others are repeats.
    deleted: usize,
}

impl Dropped {
    /// Tells them by the places of the repeats, ascending, and by the deleted links.
    pub(crate) fn new(rows: &[BatchRow], repeats: &[usize], deleted_links: &DeletedLinks) -> Self {
        let mut dropped = Self { places: Vec::new(), deleted: 0 };
        let mut repeats = repeats.iter().peekable();
        for (place, row) in rows.iter().enumerate() {
            let is_repeat = repeats.next_if(|next| **next == place).is_some();
            let is_deleted = deleted_links.contain(row.link_id);
            dropped.deleted += usize::from(is_deleted);
            if is_repeat || is_deleted {
                dropped.places.push(place);
            }
        }
        dropped
    }

    /// Returns the rows that are stored and marked: a first copy of one may still come.
    pub(crate) fn admitted<'a>(&'a self, rows: &'a [BatchRow]) -> impl Iterator<Item = &'a BatchRow> {
        let mut dropped = self.places.iter().peekable();
        rows.iter()
            .enumerate()
            .filter(move |(place, _)| dropped.next_if(|next| *next == place).is_none())
            .map(|(_, row)| row)
            .filter(|row| row.again.is_some())
    }
}

/// The pipeline of one partition.
#[derive(Debug)]
pub struct Lane {
    partition: i32,
    tools: Arc<Tools>,
    claim: Claim,
    status: Arc<Status>,
    inbox: UnboundedReceiver<Inbound>,
    stop: CancellationToken,
    /// The partition's source, once it was taken.
    src: Option<u32>,
    epoch: u64,
    generation: Generation,
    /// Everything below is stored, or dropped, or a dead letter.
    next: u64,
    /// The offset that the next record should have.
    expected: u64,
    /// The offset of the last record, whether it was skipped or not.
    received: Option<u64>,
    /// The broker's time of the last row that is stored.
    stored_until: Option<DateTime<Utc>>,
    /// Records below this offset are known to be of the log that the rows came from.
    trusted: u64,
    /// How often records were asked for again.
    rewinds: u64,
    /// Whether what comes in is from before the last rewind.
    is_rewinding: bool,
    /// The offset that the last rewind was for.
    rewound: Option<u64>,
    remembered: Remembered,
}

impl Lane {
    /// Makes a lane that has not taken its partition yet.
    pub fn new(
        partition: i32,
        tools: Arc<Tools>,
        claim: Claim,
        status: Arc<Status>,
        inbox: UnboundedReceiver<Inbound>,
        stop: CancellationToken,
    ) -> Self {
        let remembered = Remembered::default();
        Self {
            partition,
            tools,
            claim,
            status,
            inbox,
            stop,
            src: None,
            epoch: 0,
            generation: Generation::FIRST,
            next: 0,
            expected: 0,
            received: None,
            stored_until: None,
            trusted: 0,
            rewinds: 0,
            is_rewinding: false,
            rewound: None,
            remembered,
        }
    }

    /// Works until it is stopped; an insert in flight is finished first.
    pub async fn run(mut self) {
        let mut told = false;
        loop {
            match self.work().await {
                Ok(()) | Err(TakeError::Stopped(_)) => return,
                Err(TakeError::WrongLog(wrong)) => {
                    self.status.refuse(wrong.to_string());
                    // Once: it is looked at again and again, and the check says it all the time.
                    if !std::mem::replace(&mut told, true) {
                        tracing::error!(partition = self.partition, "{wrong}");
                    }
                    // The inbox stays open and fills up, so that the consumer stops fetching the partition.
                    tokio::select! {
                        biased;
                        () = self.stop.cancelled() => return,
                        () = sleep(AFTER_REFUSED) => {}
                    }
                }
                Err(TakeError::Adopted) => {
                    let partition = self.partition;
                    tracing::warn!(
                        partition,
                        "partition {partition} has another log, reading it from its start"
                    );
                }
            }
            // What was read is of a log that is gone, or has to be read again when it is back.
            self.src = None;
            (self.next, self.expected, self.trusted) = (0, 0, 0);
            (self.received, self.stored_until, self.rewound) = (None, None, None);
            self.is_rewinding = true;
        }
    }

    async fn work(&mut self) -> Result<(), TakeError> {
        let mut batcher = Batcher::new(self.tools.limits);
        let mut src = self.take().await?;
        if self.is_rewinding {
            self.rewind();
        }
        loop {
            let chunk = match self.receive(batcher.deadline()).await? {
                Heard::Chunk(chunk) => Some(chunk),
                Heard::Rewound(number) => {
                    if number == self.rewinds {
                        (self.is_rewinding, self.received) = (false, None);
                    }
                    None
                }
                Heard::Doubt => {
                    self.flush(&mut batcher).await?;
                    src = self.take().await?;
                    None
                }
                Heard::Deadline => None,
            };
            for record in chunk.iter().flat_map(Chunk::records) {
                if self.is_rewinding {
                    continue;
                }
                if self.is_strange(&record) {
                    // What was gathered is of the log as it was until here.
                    self.flush(&mut batcher).await?;
                    src = self.take().await?;
                    self.trusted = self.expected;
                }
                if !self.advance(record.offset).await? {
                    continue;
                }
                let poison = match borrow(src, &record) {
                    Ok(row) => {
                        if !batcher.accepts(&row) {
                            self.flush(&mut batcher).await?;
                        }
                        batcher.push(row);
                        None
                    }
                    Err(poison) => Some(poison),
                };
                if let Some(poison) = poison {
                    batcher.push_dead_letter(DeadLetter::new(&record, &poison).of(topic_of(src)));
                }
                if batcher.is_full() {
                    self.flush(&mut batcher).await?;
                }
            }
            if batcher.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                self.flush(&mut batcher).await?;
            }
        }
    }

    /// Waits for records, at the longest until the deadline of the batch at hand.
    async fn receive(&mut self, deadline: Option<Instant>) -> Result<Heard, Stopped> {
        let age = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Stopped),
            () = self.status.doubted() => Ok(Heard::Doubt),
            received = self.inbox.recv() => {
                let inbound = received.ok_or(Stopped)?;
                // Whatever becomes of it, it is out.
                self.status.taken_out(inbound.bytes());
                Ok(match inbound {
                    Inbound::Chunk(chunk) => Heard::Chunk(chunk),
                    Inbound::Rewound(number) => Heard::Rewound(number),
                })
            }
            () = age => Ok(Heard::Deadline),
        }
    }

    /// Returns whether a record does not look like one of the log that the rows came from: its offset is not behind the
    /// one before, or it is older by its offset than what is stored and younger by its time.
    ///
    /// The log was replaced under the consumer, or a record came twice; taking the partition tells.
    fn is_strange(&self, record: &Record<'_>) -> bool {
        let is_stored = record.offset < self.expected && record.offset >= self.trusted;
        let is_later =
            self.stored_until.zip(record.broker_ts).is_some_and(|(until, at)| at > until + BROKER_SKEW);
        self.received.is_some_and(|last| record.offset <= last) || (is_stored && is_later)
    }

    /// Asks for the records from the first one on that is not done, and leaves out what comes until then.
    fn rewind(&mut self) {
        self.rewinds += 1;
        (self.is_rewinding, self.rewound) = (true, Some(self.expected));
        self.status.rewind(Rewind { to: self.expected, number: self.rewinds });
    }

    /// Notes the offset of the record at hand, and returns whether the record is to be counted.
    async fn advance(&mut self, offset: u64) -> Result<bool, TakeError> {
        self.received = Some(offset);
        if offset < self.expected {
            return Ok(false);
        }
        let missing = offset - self.expected;
        if missing > 0 && self.rewound != Some(self.expected) && self.claim.log_holds(self.expected).await? {
            // The group's offset was one of a log that was replaced, and so the consumer began behind the new one's start.
            self.rewind();
            return Ok(false);
        }
        if missing > 0 {
            counter!("hopline_processor_position_gaps_total").increment(missing);
            let (partition, expected) = (self.partition, self.expected);
            tracing::error!(
                partition,
                expected,
                offset,
                missing,
                "{missing} messages of partition {partition} are missing before offset {offset}: \
                 the log no longer holds them"
            );
        }
        self.expected = offset + 1;
        Ok(true)
    }

    /// Takes the partition, and returns its source.
    async fn take(&mut self) -> Result<u32, TakeError> {
        self.status.taking();
        // A lane that knows none yet would bring back what was purged.
        let Tools { store, deleted_links, .. } = &*self.tools;
        until_done("read the deleted links", self.partition, &self.stop, || deleted_links.refresh(store))
            .await?;
        let known = self.src.map(|src| Known { src, next: self.next });
        let Ownership { src, epoch, generation, next, last_row, remembered } = self.claim.take(known).await?;
        self.src = Some(src);
        self.epoch = epoch;
        self.generation = generation;
        self.next = next;
        self.expected = self.expected.max(next);
        self.stored_until = last_row.map(|row| row.broker_ts).or(self.stored_until);
        self.remembered = remembered;
        self.status.owned(src, next, self.stored_until);
        Ok(src)
    }

    /// Stores what was gathered; when it returns, everything of it is done.
    async fn flush(&mut self, batcher: &mut Batcher) -> Result<(), TakeError> {
        let Some(mut batch) = batcher.cut() else { return Ok(()) };
        self.store(&mut batch).await?;
        batcher.reuse(batch);
        Ok(())
    }

    /// Stores a batch.
    async fn store(&mut self, batch: &mut Batch) -> Result<(), TakeError> {
        self.bury(batch).await?;
        let mut backoff = Backoff::new("insert a batch", self.partition);
        loop {
            // What somebody else has stored meanwhile is not stored again.
            batch.skip_below(self.next);
            let dropped = match self.find_dropped(batch).await {
                Ok(dropped) => dropped,
                Err(error) => {
                    // Perhaps because the tables that this lane knows are gone: taking it again tells the current ones.
                    backoff.failed(&error, &self.stop).await?;
                    self.take().await?;
                    continue;
                }
            };
            let Some(insertion) = batch.insertion(&dropped.places) else {
                self.done(batch, &dropped);
                return Ok(());
            };
            let started = Instant::now();
            let Some(src) = self.src else { return Ok(()) };
            let outcome = self.tools.store.insert(self.generation, src, self.epoch, &insertion).await;
            histogram!("hopline_processor_insert_seconds").record(started.elapsed().as_secs_f64());
            match outcome {
                Ok(()) => {
                    counter!("hopline_processor_rows_inserted_total").increment(insertion.rows as u64);
                    counter!("hopline_processor_batches_total").increment(1);
                    histogram!("hopline_processor_batch_rows").record(insertion.rows as f64);
                    self.done(batch, &dropped);
                    return Ok(());
                }
                Err(InsertError::Fenced) => self.fenced().await?,
                Err(InsertError::Doubtful(error)) => {
                    backoff.failed(&error, &self.stop).await?;
                    self.take().await?;
                    // A batch is stored whole or not at all, so its last row speaks for all.
                    let resolution = if self.next > insertion.last_koff { "stored" } else { "not_stored" };
                    counter!("hopline_processor_doubtful_inserts_total", "resolution" => resolution)
                        .increment(1);
                    tracing::info!(
                        partition = self.partition,
                        rows = insertion.rows,
                        resolution,
                        "read back an insert without an answer: {resolution}"
                    );
                }
            }
        }
    }

    /// Delivers what is no click; nothing behind it is committed before.
    async fn bury(&self, batch: &Batch) -> Result<(), Stopped> {
        let deliveries = batch.dead_letters().iter().map(|letter| {
            until_done("write a dead letter", self.partition, &self.stop, || {
                self.tools.dead_letters.deliver(self.partition, letter)
            })
        });
        for (delivered, letter) in
            futures_util::future::join_all(deliveries).await.into_iter().zip(batch.dead_letters())
        {
            delivered?;
            counter!("hopline_processor_dead_letters_total").increment(1);
            tracing::warn!(
                partition = self.partition,
                offset = letter.offset,
                reason = letter.reason,
                "wrote a dead letter: {}",
                letter.reason
            );
        }
        Ok(())
    }

    /// Finds the rows that are not stored: those of deleted links, and repeats.
    async fn find_dropped(&self, batch: &Batch) -> Result<Dropped, StoreError> {
        let asked = repeats::to_look_up(batch.rows(), &self.remembered);
        let stored = if asked.is_empty() {
            HashSet::new()
        } else {
            self.tools.store.stored(self.generation, &asked).await?
        };
        let repeats = repeats::find(batch.rows(), &self.remembered, &stored);
        Ok(Dropped::new(batch.rows(), &repeats, &self.tools.deleted_links))
    }

    /// Waits until the switch that has taken the partition is over, or else long enough to hear that the partition is
    /// somebody else's; then takes it again.
    ///
    /// A switch begins anew when a lane comes back before its end, so without this wait busy partitions could keep it
    /// from ever ending.
    async fn fenced(&mut self) -> Result<(), TakeError> {
        counter!("hopline_processor_fenced_inserts_total").increment(1);
        let (partition, epoch) = (self.partition, self.epoch);
        tracing::warn!(partition, epoch, "an insert was refused: partition {partition} has a newer owner");
        self.status.taking();
        let began = Instant::now();
        let mut for_switch = false;
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(Stopped.into()),
                () = sleep(SWITCH_LOOK) => {}
            }
            let store = &self.tools.store;
            let is_switching =
                until_done("look for a switch", partition, &self.stop, || store.is_switching()).await?;
            for_switch |= is_switching;
            let longest = if is_switching { LONGEST_SWITCH } else { AFTER_FENCED };
            if began.elapsed() >= longest || (for_switch && !is_switching) {
                break;
            }
        }
        self.take().await?;
        Ok(())
    }

    /// Notes that a batch is done with.
    fn done(&mut self, batch: &Batch, dropped: &Dropped) {
        let repeats = dropped.places.len() - dropped.deleted;
        counter!("hopline_processor_repeats_dropped_total").increment(repeats as u64);
        counter!("hopline_processor_deleted_dropped_total").increment(dropped.deleted as u64);
        for row in dropped.admitted(batch.rows()) {
            self.remembered.admit(&row.click_id, row.broker_ts);
        }
        self.next = self.next.max(batch.next());
        self.stored_until = batch.rows().last().map(|row| row.broker_ts).or(self.stored_until);
        if let Some(src) = self.src {
            self.status.owned(src, self.next, self.stored_until);
        }
    }
}
