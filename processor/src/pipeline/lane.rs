//! The pipeline of one partition: decode, collect a batch, drop repeats, store, and only then continue.
//!
//! A lane has at most one insert in flight; lanes run concurrently. When it takes its partition over, it requests the
//! records from the position that ClickHouse has. If its current batch begins there, it continues with that batch.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::{counter, histogram};
use schemas::row::log_of;
use service::kafka::DeadLetters;
use service::traces::{Kind, Tracer};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clickhouse::{After, FencingToken, InsertError, Insertion, Store, StoreError, StoredRow, Stretch};
use crate::pipeline::batch::{Batch, BatchRow, Batcher, Limits};
use crate::pipeline::chunk::Chunk;
use crate::pipeline::dead_letter::{self, Unreadable};
use crate::pipeline::decode::borrow;
use crate::pipeline::deleted_links::DeletedLinks;
use crate::pipeline::lane_state::{Inbound, Notices, Phase, Seek, State};
use crate::pipeline::ownership::{Claim, Ownership, TakeoverError, WrongLog};
use crate::pipeline::repeats::{self, Dropped, RecentIds};
use crate::pipeline::retry::{Backoff, Stopped, pause, until_done};

/// How long a lane waits after it was fenced. Longer than a consumer's heartbeat interval, so that a process that Kafka
/// removed from the group learns of it and closes the lane instead of taking the partition over again.
const FENCED_PAUSE: Duration = Duration::from_secs(5);

/// How long a blocked lane waits before it checks again whether the former log is back or the new one was adopted.
const BLOCKED_PAUSE: Duration = Duration::from_secs(10);

/// What a lane works with.
#[derive(Debug)]
pub struct Tools {
    /// The topic of clicks, by its full name.
    pub topic: String,
    /// The tables.
    pub store: Store,
    /// The topic of dead letters.
    pub dead_letters: DeadLetters,
    /// The links whose clicks are not stored.
    pub deleted_links: DeletedLinks,
    /// Limits of a batch.
    pub limits: Limits,
    /// Traces clicks.
    pub tracer: Tracer,
}

/// Why a lane stops working at its position.
#[derive(Debug)]
enum Interrupted {
    /// The partition was revoked.
    Stopped,
    /// The partition must not be taken over.
    Rejected(WrongLog),
    /// The partition must be taken over again and read from ClickHouse's position. The current batch is discarded.
    TakeOverAgain,
}

impl From<Stopped> for Interrupted {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<TakeoverError> for Interrupted {
    fn from(error: TakeoverError) -> Self {
        match error {
            TakeoverError::Stopped(_) => Self::Stopped,
            TakeoverError::WrongLog(wrong) => Self::Rejected(wrong),
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
    notices: watch::Receiver<Notices>,
    inbox: UnboundedReceiver<Inbound>,
    stop: CancellationToken,
    /// When the last records arrived.
    received_at: Instant,
}

/// A partition that a lane owns, and its position.
#[derive(Debug)]
struct Owned {
    store: Store,
    token: FencingToken,
    topic_id: Uuid,
    /// Every record below this offset is stored, dropped, or a dead letter.
    next: u64,
    /// The first offset of the stretch without rows that ends at `next`.
    stretch_begins: u64,
    /// The offset of the last row that was ever stored.
    last_koff: Option<u64>,
    /// The broker's time of the last stored row.
    stored_until: Option<DateTime<Utc>>,
    /// The time up to which its clicks were counted at the takeover, as ClickHouse had stored it.
    as_of: Option<DateTime<Utc>>,
    recent_ids: RecentIds,
}

impl From<Ownership> for Owned {
    fn from(ownership: Ownership) -> Self {
        let Ownership { store, token, topic_id, position, as_of, recent_ids } = ownership;
        let last_row = position.last_row.as_ref();
        Self {
            store,
            token,
            topic_id,
            next: position.next,
            stretch_begins: position.stretch_begins(),
            last_koff: position.last_koff,
            stored_until: last_row.and_then(StoredRow::broker_ts),
            as_of,
            recent_ids,
        }
    }
}

impl Owned {
    fn phase(&self) -> Phase {
        Phase::Owned { token: self.token, as_of: self.as_of, next: self.next, broker_ts: self.stored_until }
    }

    /// Returns the stretch without rows that ends with a batch.
    fn stretch_to_end(&self, batch: &Batch) -> Stretch {
        Stretch {
            first: self.stretch_begins,
            next: batch.next(),
            broker_ts: batch.last_broker_ts(),
            rows_end: self.last_koff.map_or(0, |koff| koff + 1),
        }
    }
}

impl Lane {
    /// Creates a lane that has not taken its partition over yet.
    pub fn new(
        partition: i32,
        tools: Arc<Tools>,
        claim: Claim,
        state: watch::Sender<State>,
        notices: watch::Receiver<Notices>,
        inbox: UnboundedReceiver<Inbound>,
        stop: CancellationToken,
    ) -> Self {
        Self { partition, tools, claim, state, notices, inbox, stop, received_at: Instant::now() }
    }

    /// Works until it is stopped, and finishes an insert in flight first.
    pub async fn run(mut self) {
        let mut is_logged = false;
        loop {
            match self.work().await {
                Interrupted::Stopped => return,
                Interrupted::Rejected(wrong) => {
                    self.enter(Phase::Blocked(wrong.to_string()));
                    // Logged once, because the readiness check repeats it.
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::error!(partition = self.partition, "{wrong}");
                    }
                    // The inbox stays open and fills up, which makes the consumer pause the partition.
                    if pause(BLOCKED_PAUSE, &self.stop).await.is_err() {
                        return;
                    }
                }
                Interrupted::TakeOverAgain => {}
            }
        }
    }

    /// Takes the partition over and processes it from ClickHouse's position until something interrupts it.
    async fn work(&mut self) -> Interrupted {
        let mut owned = match self.take_over().await {
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
        // The expected offset of the next record.
        let mut expected = owned.next;
        loop {
            let chunk = match self.receive(owned.token, batcher.deadline()).await? {
                // Chunks that arrive before the seek is done are from before it.
                Some(Inbound::Chunk(chunk, _)) => Some(chunk).filter(|_| !is_seeking),
                Some(Inbound::SeekDone(done)) => {
                    is_seeking &= done != number;
                    None
                }
                None => None,
            };
            // Each lane holds a reference to the tools, and `Lanes` holds one.
            let open_lanes = Arc::strong_count(&self.tools) - 1;
            for record in chunk.iter().flat_map(Chunk::records) {
                if record.offset < expected {
                    // The log ends below the requested offset, so the consumer was reset to a lower one.
                    tracing::warn!(
                        partition = self.partition,
                        offset = record.offset,
                        expected,
                        "records of partition {} begin at offset {} instead of {expected}",
                        self.partition,
                        record.offset
                    );
                    return Err(Interrupted::TakeOverAgain);
                }
                if record.offset > expected {
                    self.report_missing(expected, record.offset).await?;
                }
                expected = record.offset + 1;
                if record.offset < owned.next {
                    continue;
                }
                let invalid = match borrow(owned.token.src, &record) {
                    Ok(row) => {
                        if !batcher.accepts(&row) {
                            self.flush(owned, &mut batcher).await?;
                        }
                        batcher.push(&row);
                        None
                    }
                    Err(error) => Some(error),
                };
                if let Some(error) = invalid {
                    let topic = &self.tools.topic;
                    let record = Unreadable::new(topic, "click.v1", self.partition, &record, &error);
                    batcher.push_unreadable(record.of_log(log_of(owned.token.src)));
                }
                if batcher.is_full(open_lanes) {
                    self.flush(owned, &mut batcher).await?;
                }
            }
            if batcher.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                self.flush(owned, &mut batcher).await?;
            }
        }
    }

    /// Waits for records; returns `None` at the deadline of the current batch.
    async fn receive(
        &mut self,
        token: FencingToken,
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
            Ok(_) = self.notices.wait_for(|notices| notices.lost == Some(token)) => Err(Interrupted::TakeOverAgain),
            received = self.inbox.recv() => {
                self.received_at = Instant::now();
                Ok(Some(received.ok_or(Stopped)?))
            }
            () = age => Ok(None),
        }
    }

    /// Reports that the records between two offsets are missing.
    async fn report_missing(&self, expected: u64, offset: u64) -> Result<(), Stopped> {
        let missing = self.claim.log_start().await?.min(offset).saturating_sub(expected);
        // Offsets after the log's start without a record are normal: transactions of other producers use some.
        if missing > 0 {
            counter!("hopline_processor_position_gaps_total").increment(missing);
            let partition = self.partition;
            tracing::error!(
                partition,
                expected,
                offset,
                missing,
                "{missing} messages of partition {partition} are missing before offset {offset}: \
                 the log no longer has them"
            );
        }
        Ok(())
    }

    /// Takes the partition over.
    async fn take_over(&mut self) -> Result<Owned, Interrupted> {
        self.enter_taking_over();
        let Tools { store, deleted_links, .. } = &*self.tools;
        // Without the deleted links, the lane would store clicks of purged links again.
        until_done("read the deleted links", self.partition, &self.stop, || deleted_links.refresh(store))
            .await?;
        let owned = Owned::from(self.claim.take_over().await?);
        self.enter(owned.phase());
        Ok(owned)
    }

    /// Takes the partition over again while a batch is waiting that begins at the lane's position.
    async fn take_over_again(&mut self, owned: &mut Owned) -> Result<(), Interrupted> {
        let now = self.take_over().await?;
        let continues = now.token.src == owned.token.src && now.next >= owned.next;
        *owned = now;
        // Otherwise ClickHouse has fewer rows than before, or the log is another one.
        if continues { Ok(()) } else { Err(Interrupted::TakeOverAgain) }
    }

    /// Stores the collected batch; afterwards all of it is processed.
    async fn flush(&mut self, owned: &mut Owned, batcher: &mut Batcher) -> Result<(), Interrupted> {
        let Some(mut batch) = batcher.cut() else { return Ok(()) };
        // The records were read before this request, so they belong to the topic that has this id.
        if self.claim.topic_id_since(self.received_at.into_std()).await? != owned.topic_id {
            return Err(Interrupted::TakeOverAgain);
        }
        self.store(owned, &mut batch).await?;
        batcher.reuse(batch);
        Ok(())
    }

    /// Stores a batch.
    async fn store(&mut self, owned: &mut Owned, batch: &mut Batch) -> Result<(), Interrupted> {
        // A record counts as processed only after its dead letter is written.
        dead_letter::write(batch.unreadable(), &self.tools.dead_letters, &self.stop).await?;
        let mut backoff = Backoff::new("insert a batch", self.partition);
        loop {
            // Rows that another owner has stored since are not stored again.
            batch.skip_below(owned.next);
            let dropped = match self.find_dropped(owned, batch).await {
                Ok(dropped) => dropped,
                Err(error) => {
                    backoff.failed(&error, &self.stop).await?;
                    continue;
                }
            };
            let insertion = batch.insertion(&dropped.indexes);
            let started = Instant::now();
            let outcome = match &insertion {
                Some(insertion) => {
                    let as_of = self.notices.borrow().as_of(owned.token).max(owned.as_of);
                    let after = After { koff: owned.last_koff, as_of };
                    owned.store.insert(owned.token, after, insertion).await
                }
                None if batch.next() <= owned.next => Ok(()),
                None => owned.store.insert_stretch(owned.token, owned.stretch_to_end(batch)).await,
            };
            match outcome {
                Ok(()) => {
                    if let Some(insertion) = &insertion {
                        histogram!("hopline_processor_insert_seconds")
                            .record(started.elapsed().as_secs_f64());
                        counter!("hopline_processor_rows_inserted_total").increment(insertion.rows as u64);
                        counter!("hopline_processor_batches_total").increment(1);
                        histogram!("hopline_processor_batch_rows").record(insertion.rows as f64);
                        self.trace(batch, &dropped);
                    }
                    self.done(owned, batch, &dropped, insertion.as_ref());
                    if insertion.is_some() && owned.next > owned.stretch_begins {
                        self.note_end(owned, batch).await;
                    }
                    return Ok(());
                }
                Err(InsertError::Fenced) => self.fenced(owned).await?,
                Err(InsertError::InDoubt(error)) => {
                    backoff.failed(&error, &self.stop).await?;
                    self.take_over_again(owned).await?;
                    let Some(insertion) = insertion else { continue };
                    // A batch is stored as a whole or not at all, so checking its last row is enough.
                    let resolution = if owned.next > insertion.last_koff { "stored" } else { "not_stored" };
                    counter!("hopline_processor_doubtful_inserts_total", "resolution" => resolution)
                        .increment(1);
                    tracing::info!(
                        partition = self.partition,
                        rows = insertion.rows,
                        resolution,
                        "an insert without an answer was checked: {resolution}"
                    );
                }
            }
        }
    }

    /// Traces the rows that were just inserted, each from its record on.
    fn trace(&self, batch: &Batch, dropped: &Dropped) {
        let tracer = &self.tools.tracer;
        if !tracer.is_on() {
            return;
        }
        for row in dropped.kept(batch) {
            let Some(trace) = tracer.trace(row.click_id()) else { continue };
            trace
                .child("insert", Kind::Consumer, row.broker_ts().into())
                .number("messaging.kafka.offset", row.koff())
                .number("messaging.destination.partition.id", self.partition)
                .end();
        }
    }

    /// Records that everything after the last row of a batch is processed, so that the next owner does not repeat it
    /// (for example write the dead letters again).
    async fn note_end(&self, owned: &Owned, batch: &Batch) {
        let stretch = owned.stretch_to_end(batch);
        if let Err(error) = owned.store.insert_stretch(owned.token, stretch).await {
            // Only a takeover reads it, and would repeat the work.
            tracing::debug!(partition = self.partition, %error, "cannot store the end of a batch: {error}");
        }
    }

    /// Finds the rows that must not be stored: clicks of deleted links, and repeats.
    async fn find_dropped(&self, owned: &Owned, batch: &Batch) -> Result<Dropped, StoreError> {
        let asked = repeats::to_look_up(batch, &owned.recent_ids);
        let stored = owned.store.stored(&asked).await?;
        let repeats = repeats::find(batch, &owned.recent_ids, &stored);
        Ok(Dropped::new(batch, &repeats, &self.tools.deleted_links))
    }

    /// Waits long enough to learn that the partition was revoked, then takes it over again.
    async fn fenced(&mut self, owned: &mut Owned) -> Result<(), Interrupted> {
        counter!("hopline_processor_fenced_inserts_total").increment(1);
        let (partition, epoch) = (self.partition, owned.token.epoch);
        tracing::warn!(
            partition,
            epoch,
            "an insert was rejected: partition {partition} has a newer owner, or ClickHouse is an older copy"
        );
        self.enter_taking_over();
        pause(FENCED_PAUSE, &self.stop).await?;
        self.take_over_again(owned).await
    }

    /// Updates the position after a batch is processed.
    fn done(&self, owned: &mut Owned, batch: &Batch, dropped: &Dropped, stored: Option<&Insertion>) {
        let repeats = dropped.indexes.len() - dropped.deleted;
        counter!("hopline_processor_repeats_dropped_total").increment(repeats as u64);
        counter!("hopline_processor_deleted_dropped_total").increment(dropped.deleted as u64);
        for row in dropped.admitted(batch) {
            owned.recent_ids.admit(row.click_id(), row.broker_ts());
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

    /// Publishes that the lane has no token. A blocked lane stays blocked until it has one.
    fn enter_taking_over(&self) {
        self.state.send_modify(|state| {
            if !matches!(state.phase, Phase::Blocked(_)) {
                state.phase = Phase::TakingOver;
            }
        });
    }

    /// Requests the records from an offset on, and returns the number of the request.
    fn seek(&self, to: u64) -> u64 {
        let mut number = 0;
        self.state.send_modify(|state| {
            number = state.seek.map_or(0, |last| last.number) + 1;
            state.seek = Some(Seek { to, number });
        });
        number
    }
}
