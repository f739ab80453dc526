//! The pipeline of one partition: decode, gather, drop repeats, store, and only then go on.
//!
//! A lane does one thing at a time, so one insert of its source is in flight; lanes run beside each other. Whenever it
//! takes its partition it asks for the log from where ClickHouse is; with a batch at hand that begins there, it goes on
//! with that.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::{counter, histogram};
use schemas::row::log_of;
use service::kafka::DeadLetters;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clickhouse::{After, InsertError, Insertion, Right, Store, StoreError, StoredRow, Stretch};
use crate::pipeline::batch::{Batch, BatchRow, Batcher, Limits};
use crate::pipeline::chunk::Chunk;
use crate::pipeline::dead_letter::{self, Unreadable};
use crate::pipeline::decode::borrow;
use crate::pipeline::deleted_links::DeletedLinks;
use crate::pipeline::lanes::{Inbound, News, Phase, Seek, State};
use crate::pipeline::ownership::{Claim, Ownership, TakeError, WrongLog};
use crate::pipeline::repeats::{self, Dropped, Remembered};
use crate::pipeline::retry::{Backoff, Stopped, pause, until_done};

/// How long a lane waits after it was fenced: longer than a consumer's heartbeat interval, so that a process
/// which Kafka has thrown out of the group hears of it, and gives the partition back, before it takes it again.
const AFTER_FENCED: Duration = Duration::from_secs(5);

/// How long a lane waits after it was refused, before it looks whether the former log is back or the new one adopted.
const AFTER_REFUSED: Duration = Duration::from_secs(10);

/// What a lane works with.
#[derive(Debug)]
pub struct Tools {
    /// The topic of clicks, by its full name.
    pub topic: String,
    /// The tables.
    pub store: Store,
    /// The topic of what is no click.
    pub dead_letters: DeadLetters,
    /// Whose clicks are not stored.
    pub deleted_links: DeletedLinks,
    /// When batches are cut.
    pub limits: Limits,
}

/// Why a lane does not go on where it is.
#[derive(Debug)]
enum Interrupted {
    /// The partition was given back.
    Stopped,
    /// It must not be taken.
    Refused(WrongLog),
    /// It has to be taken again, and read again from where ClickHouse is; whatever was gathered is dropped.
    Again,
}

impl From<Stopped> for Interrupted {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<TakeError> for Interrupted {
    fn from(error: TakeError) -> Self {
        match error {
            TakeError::Stopped(_) => Self::Stopped,
            TakeError::WrongLog(wrong) => Self::Refused(wrong),
        }
    }
}

/// The pipeline of one partition.
#[derive(Debug)]
pub struct Lane {
    partition: i32,
    tools: Arc<Tools>,
    claim: Claim,
    state: watch::Sender<State>,
    news: watch::Receiver<News>,
    inbox: UnboundedReceiver<Inbound>,
    stop: CancellationToken,
    /// When the last records came in.
    received_at: Instant,
}

/// A partition that a lane has, and how far it is with it.
#[derive(Debug)]
struct Owned {
    right: Right,
    topic_id: Uuid,
    /// Everything below is stored, or dropped, or a dead letter.
    next: u64,
    /// Where the stretch without rows begins that goes on at `next`.
    stretch_begins: u64,
    /// The offset of the last stored row.
    last_koff: Option<u64>,
    /// The broker's time of the last stored row.
    stored_until: Option<DateTime<Utc>>,
    /// Up to when ClickHouse said that its clicks are counted when it was taken.
    as_of: Option<DateTime<Utc>>,
    remembered: Remembered,
}

impl From<Ownership> for Owned {
    fn from(ownership: Ownership) -> Self {
        let Ownership { right, topic_id, position, as_of, remembered } = ownership;
        let last_row = position.last_row.as_ref();
        Self {
            right,
            topic_id,
            next: position.next,
            stretch_begins: position.stretch_begins(),
            last_koff: last_row.map(|row| row.koff),
            stored_until: last_row.and_then(StoredRow::broker_ts),
            as_of,
            remembered,
        }
    }
}

impl Owned {
    fn phase(&self) -> Phase {
        Phase::Owned { right: self.right, as_of: self.as_of, next: self.next, broker_ts: self.stored_until }
    }

    /// The stretch without rows that ends with a batch.
    fn stretch_to_end(&self, batch: &Batch) -> Stretch {
        Stretch { first: self.stretch_begins, next: batch.next(), broker_ts: batch.last_broker_ts() }
    }
}

impl Lane {
    /// Makes a lane that has not taken its partition yet.
    pub fn new(
        partition: i32,
        tools: Arc<Tools>,
        claim: Claim,
        state: watch::Sender<State>,
        news: watch::Receiver<News>,
        inbox: UnboundedReceiver<Inbound>,
        stop: CancellationToken,
    ) -> Self {
        Self { partition, tools, claim, state, news, inbox, stop, received_at: Instant::now() }
    }

    /// Works until it is stopped; an insert in flight is finished first.
    pub async fn run(mut self) {
        let mut told = false;
        loop {
            match self.work().await {
                Interrupted::Stopped => return,
                Interrupted::Refused(wrong) => {
                    self.enter(Phase::Refused(wrong.to_string()));
                    // Once: it is looked at again and again, and the check says it all the time.
                    if !std::mem::replace(&mut told, true) {
                        tracing::error!(partition = self.partition, "{wrong}");
                    }
                    // The inbox stays open and fills up, so that the consumer stops fetching the partition.
                    if pause(AFTER_REFUSED, &self.stop).await.is_err() {
                        return;
                    }
                }
                Interrupted::Again => {}
            }
        }
    }

    /// Takes the partition and works on it from where ClickHouse is, until something interrupts that.
    async fn work(&mut self) -> Interrupted {
        let mut owned = match self.take().await {
            Ok(owned) => owned,
            Err(interrupted) => return interrupted,
        };
        let Err(interrupted) = self.count(&mut owned).await;
        interrupted
    }

    async fn count(&mut self, owned: &mut Owned) -> Result<Infallible, Interrupted> {
        let mut batcher = Batcher::new(self.tools.limits);
        let number = self.seek(owned.next);
        let mut is_seeking = true;
        // The offset that the next record should have.
        let mut expected = owned.next;
        loop {
            let chunk = match self.receive(owned.right, batcher.deadline()).await? {
                // While it seeks they are of before.
                Some(Inbound::Chunk(chunk, _)) => Some(chunk).filter(|_| !is_seeking),
                Some(Inbound::Sought(sought)) => {
                    is_seeking &= sought != number;
                    None
                }
                None => None,
            };
            // Each lane has the tools, and who opens lanes.
            let gathering = Arc::strong_count(&self.tools) - 1;
            for record in chunk.iter().flat_map(Chunk::records) {
                if record.offset < expected {
                    // The log ended before what was asked for, or ends there now, so its reader began again below.
                    tracing::warn!(
                        partition = self.partition,
                        offset = record.offset,
                        expected,
                        "partition {} came from offset {} on and not from {expected}",
                        self.partition,
                        record.offset
                    );
                    return Err(Interrupted::Again);
                }
                if record.offset > expected {
                    self.miss(expected, record.offset).await?;
                }
                expected = record.offset + 1;
                if record.offset < owned.next {
                    continue;
                }
                let poison = match borrow(owned.right.src, &record) {
                    Ok(row) => {
                        if !batcher.accepts(&row) {
                            self.flush(owned, &mut batcher).await?;
                        }
                        batcher.push(&row);
                        None
                    }
                    Err(poison) => Some(poison),
                };
                if let Some(poison) = poison {
                    let topic = &self.tools.topic;
                    let record = Unreadable::new(topic, "click.v1", self.partition, &record, &poison);
                    batcher.push_unreadable(record.of_log(log_of(owned.right.src)));
                }
                if batcher.is_full(gathering) {
                    self.flush(owned, &mut batcher).await?;
                }
            }
            if batcher.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                self.flush(owned, &mut batcher).await?;
            }
        }
    }

    /// Waits for records; returns `None` at the deadline of the batch at hand.
    async fn receive(
        &mut self,
        right: Right,
        deadline: Option<Instant>,
    ) -> Result<Option<Inbound>, Interrupted> {
        let age = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Interrupted::Stopped),
            Ok(_) = self.news.wait_for(|news| news.lost == Some(right)) => Err(Interrupted::Again),
            received = self.inbox.recv() => {
                self.received_at = Instant::now();
                Ok(Some(received.ok_or(Stopped)?))
            }
            () = age => Ok(None),
        }
    }

    /// Notes that no records came from one offset to another.
    async fn miss(&self, expected: u64, offset: u64) -> Result<(), Stopped> {
        let missing = self.claim.log_start().await?.min(offset).saturating_sub(expected);
        // Others are none: transactions of other producers leave holes.
        if missing > 0 {
            counter!("hopline_processor_position_gaps_total").increment(missing);
            let partition = self.partition;
            tracing::error!(
                partition,
                expected,
                offset,
                missing,
                "{missing} messages of partition {partition} are missing before offset {offset}: \
                 the log no longer holds them"
            );
        }
        Ok(())
    }

    /// Takes the partition.
    async fn take(&mut self) -> Result<Owned, Interrupted> {
        self.enter_taking();
        // A lane that knows none yet would bring back what was purged.
        let Tools { store, deleted_links, .. } = &*self.tools;
        until_done("read the deleted links", self.partition, &self.stop, || deleted_links.refresh(store))
            .await?;
        let owned = Owned::from(self.claim.take().await?);
        self.enter(owned.phase());
        Ok(owned)
    }

    /// Takes the partition again with a batch at hand, which begins where this lane was.
    async fn take_again(&mut self, owned: &mut Owned) -> Result<(), Interrupted> {
        let now = self.take().await?;
        let goes_on = now.right.src == owned.right.src && now.next >= owned.next;
        *owned = now;
        // Else ClickHouse has less than it had, or the log is another one.
        if goes_on { Ok(()) } else { Err(Interrupted::Again) }
    }

    /// Stores what was gathered; when it returns, everything of it is done.
    async fn flush(&mut self, owned: &mut Owned, batcher: &mut Batcher) -> Result<(), Interrupted> {
        let Some(mut batch) = batcher.cut() else { return Ok(()) };
        // The records were read before: they are of the topic that has this id now.
        if self.claim.topic_id_since(self.received_at.into_std()).await? != owned.topic_id {
            return Err(Interrupted::Again);
        }
        self.store(owned, &mut batch).await?;
        batcher.reuse(batch);
        Ok(())
    }

    /// Stores a batch.
    async fn store(&mut self, owned: &mut Owned, batch: &mut Batch) -> Result<(), Interrupted> {
        // Nothing behind it counts as done before.
        dead_letter::write(batch.unreadable(), &self.tools.dead_letters, &self.stop).await?;
        let mut backoff = Backoff::new("insert a batch", self.partition);
        loop {
            // What somebody else has stored meanwhile is not stored again.
            batch.skip_below(owned.next);
            let dropped = match self.find_dropped(owned, batch).await {
                Ok(dropped) => dropped,
                Err(error) => {
                    backoff.failed(&error, &self.stop).await?;
                    continue;
                }
            };
            let insertion = batch.insertion(&dropped.places);
            let started = Instant::now();
            let outcome = match &insertion {
                Some(insertion) => {
                    let as_of = self.news.borrow().as_of(owned.right).max(owned.as_of);
                    let after = After { koff: owned.last_koff, as_of };
                    self.tools.store.insert(owned.right, after, insertion).await
                }
                None if batch.next() <= owned.next => Ok(()),
                None => self.tools.store.insert_stretch(owned.right, owned.stretch_to_end(batch)).await,
            };
            match outcome {
                Ok(()) => {
                    if let Some(insertion) = &insertion {
                        histogram!("hopline_processor_insert_seconds")
                            .record(started.elapsed().as_secs_f64());
                        counter!("hopline_processor_rows_inserted_total").increment(insertion.rows as u64);
                        counter!("hopline_processor_batches_total").increment(1);
                        histogram!("hopline_processor_batch_rows").record(insertion.rows as f64);
                    }
                    self.done(owned, batch, &dropped, insertion.as_ref());
                    if insertion.is_some() && owned.next > owned.stretch_begins {
                        self.note_end(owned, batch).await;
                    }
                    return Ok(());
                }
                Err(InsertError::Fenced) => self.fenced(owned).await?,
                Err(InsertError::Doubtful(error)) => {
                    backoff.failed(&error, &self.stop).await?;
                    self.take_again(owned).await?;
                    let Some(insertion) = insertion else { continue };
                    // A batch is stored whole or not at all, so its last row speaks for all.
                    let resolution = if owned.next > insertion.last_koff { "stored" } else { "not_stored" };
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

    /// Notes that what follows the last row of a batch is done, so that nobody does it again, as writing dead letters.
    async fn note_end(&self, owned: &Owned, batch: &Batch) {
        let stretch = owned.stretch_to_end(batch);
        if let Err(error) = self.tools.store.insert_stretch(owned.right, stretch).await {
            // Only a takeover asks for it, and would do it again.
            tracing::debug!(partition = self.partition, %error, "cannot note the end of a batch: {error}");
        }
    }

    /// Finds the rows that are not stored: those of deleted links, and repeats.
    async fn find_dropped(&self, owned: &Owned, batch: &Batch) -> Result<Dropped, StoreError> {
        let asked = repeats::to_look_up(batch, &owned.remembered);
        let stored = self.tools.store.stored(&asked).await?;
        let repeats = repeats::find(batch, &owned.remembered, &stored);
        Ok(Dropped::new(batch, &repeats, &self.tools.deleted_links))
    }

    /// Waits long enough to hear that the partition is somebody else's, then takes it again.
    async fn fenced(&mut self, owned: &mut Owned) -> Result<(), Interrupted> {
        counter!("hopline_processor_fenced_inserts_total").increment(1);
        let (partition, epoch) = (self.partition, owned.right.epoch);
        tracing::warn!(
            partition,
            epoch,
            "an insert was refused: partition {partition} has a newer owner, or ClickHouse is an older copy"
        );
        self.enter_taking();
        pause(AFTER_FENCED, &self.stop).await?;
        self.take_again(owned).await
    }

    /// Notes that a batch is done with.
    fn done(&self, owned: &mut Owned, batch: &Batch, dropped: &Dropped, stored: Option<&Insertion>) {
        let repeats = dropped.places.len() - dropped.deleted;
        counter!("hopline_processor_repeats_dropped_total").increment(repeats as u64);
        counter!("hopline_processor_deleted_dropped_total").increment(dropped.deleted as u64);
        for row in dropped.admitted(batch) {
            owned.remembered.admit(row.click_id(), row.broker_ts());
        }
        if let Some(Insertion { last_koff, .. }) = stored {
            (owned.last_koff, owned.stretch_begins) = (Some(*last_koff), last_koff + 1);
        }
        owned.next = owned.next.max(batch.next());
        owned.stored_until = batch.rows().next_back().map(BatchRow::broker_ts).or(owned.stored_until);
        self.enter(owned.phase());
    }

    fn enter(&self, phase: Phase) {
        self.state.send_modify(|state| state.phase = phase);
    }

    /// Says that the lane has no right to insert. One that was refused stays so until it has the right.
    fn enter_taking(&self) {
        self.state.send_modify(|state| {
            if !matches!(state.phase, Phase::Refused(_)) {
                state.phase = Phase::Taking;
            }
        });
    }

    /// Asks for the records from an offset on, and returns the number of this wish.
    fn seek(&self, to: u64) -> u64 {
        let mut number = 0;
        self.state.send_modify(|state| {
            number = state.seek.map_or(0, |last| last.number) + 1;
            state.seek = Some(Seek { to, number });
        });
        number
    }
}
