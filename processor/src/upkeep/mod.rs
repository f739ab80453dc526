//! What is done to the tables beside inserting clicks: slices of the rollups are closed, deleted links' rows are
//! removed, and so are rows that no plan shows any more.
//!
//! One process does it at a time: the one that [`crate::pipeline::intake`] says. As that is not certain, each of its inserts
//! is fenced as those of clicks are, under an epoch of its own: whoever raises it sees the tables as they will stay,
//! and what a former owner still sends is refused. What was interrupted has written rows of a version that was never
//! activated; they count nothing, and are removed.

mod purge;
mod retention;
mod slices;
mod tables;

use std::time::Duration;

use chrono::NaiveDate;
use metrics::counter;
use schemas::row::UPKEEP;
use service::Shutdown;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use uuid::Uuid;

pub(crate) use retention::first_kept;
pub use tables::Tables;

use crate::clickhouse::clock::{Clock, ClocksDiffer};
use crate::clickhouse::{InsertError, Store, StoreError};
use crate::pipeline::log::{Log, LogError};

/// How long upkeep rests after a failure; a former owner hears meanwhile that it is one.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// When upkeep does what.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// How often it looks whether a slice can be closed.
    pub look: Duration,
    /// How far every partition must be past a slice's end before the slice is closed.
    pub slice_delay: Duration,
    /// How often rows of deleted links are removed.
    pub purge: Duration,
    /// How often rows that no plan shows any more are removed, and deleted ones taken off the disk.
    pub retention: Duration,
    /// How long after another version became active the former one may still be read: longer than any query may take.
    pub read_on: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            look: Duration::from_secs(10),
            slice_delay: Duration::from_secs(600),
            purge: Duration::from_secs(600),
            retention: Duration::from_secs(24 * 3600),
            read_on: Duration::from_secs(60),
        }
    }
}

/// Milliseconds that a command rests at the longest after somebody else has taken upkeep over: at first, and ever.
const FIRST_REST: u64 = 2_000;
const LONGEST_REST: u64 = 30_000;

/// Why upkeep was interrupted; it begins again.
#[derive(Debug, thiserror::Error)]
pub enum UpkeepError {
    /// ClickHouse did not do it, or it is not known whether it did.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Kafka did not say which partitions there are.
    #[error(transparent)]
    Log(#[from] LogError),
    /// It is not certain what time it is.
    #[error(transparent)]
    Clocks(#[from] ClocksDiffer),
    /// Another process has upkeep to do.
    #[error("another processor has taken upkeep over")]
    Fenced,
    /// The rollups that were computed do not have the clicks that the raw rows have.
    #[error("the rollups of version {version} have other clicks than the raw rows: {found}")]
    Unequal {
        /// The version, which was not activated.
        version: u64,
        /// What was counted.
        found: String,
    },
}

/// Does what is due while `held` is true, until the stop is requested.
pub async fn upkeep(
    store: Store,
    tables: Tables,
    log: Log,
    schedule: Schedule,
    mut held: watch::Receiver<bool>,
    shutdown: Shutdown,
) {
    let mut upkeep = Upkeep::new(store, tables, log, schedule);
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            // The sender lives as long as the intake does.
            held = held.wait_for(|held| *held) => if held.is_err() { return },
        }
        tokio::select! {
            () = shutdown.wait() => return,
            _ = held.wait_for(|held| !*held) => tracing::info!("upkeep goes to another processor"),
            () = upkeep.work() => {}
        }
    }
}

/// Upkeep of the tables.
#[derive(Debug)]
pub struct Upkeep {
    store: Store,
    tables: Tables,
    log: Log,
    schedule: Schedule,
    purged: Option<Instant>,
    expired: Option<Instant>,
    /// Since when rows may be there of versions that nobody reads.
    litter: Option<Instant>,
}

impl Upkeep {
    fn new(store: Store, tables: Tables, log: Log, schedule: Schedule) -> Self {
        Self { store, tables, log, schedule, purged: None, expired: None, litter: None }
    }

    /// Does what is due, again and again.
    async fn work(&mut self) {
        tracing::info!("upkeep is this processor's to do");
        // The former owner may have been killed anywhere.
        self.note_litter();
        let mut ticks = interval(self.schedule.look);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.round().await {
                self.note_litter();
                counter!("hopline_processor_upkeep_failures_total").increment(1);
                tracing::warn!(error = &error as &dyn std::error::Error, "upkeep was interrupted: {error}");
                sleep(AFTER_FAILURE).await;
            }
        }
    }

    async fn round(&mut self) -> Result<(), UpkeepError> {
        let now = Clock::read(&self.store).await?.agreed()?;
        while self.close_next(now).await? {}
        while self.close_again().await? {}
        if is_due(self.purged, self.schedule.purge) {
            self.purge().await?;
            self.purged = Some(Instant::now());
        }
        // Who began to read a version before another one became active still reads it.
        if self.litter.is_some_and(|since| since.elapsed() > self.schedule.read_on) {
            self.remove_litter().await?;
            self.litter = None;
        }
        if is_due(self.expired, self.schedule.retention) {
            self.expire(now.date_naive()).await?;
            // Operators' commands leave former versions, too.
            self.note_litter();
            self.erase().await?;
            self.expired = Some(Instant::now());
        }
        Ok(())
    }

    fn note_litter(&mut self) {
        self.litter = Some(Instant::now());
    }
}

impl From<InsertError> for UpkeepError {
    fn from(error: InsertError) -> Self {
        match error {
            InsertError::Fenced => Self::Fenced,
            InsertError::Doubtful(error) => Self::Store(error),
        }
    }
}

/// When a slice is closed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// When its clicks have changed since it was closed.
    Changed,
    /// Whatever its clicks are.
    Always,
}

/// Closes a slice again, if it is closed.
///
/// # Errors
/// When ClickHouse does not do it, or what was computed is not what the raw rows have.
pub(crate) async fn close_again(
    store: &Store,
    tables: &Tables,
    slice: NaiveDate,
    when: When,
) -> Result<(), UpkeepError> {
    let mut longest = FIRST_REST;
    loop {
        // A processor that has upkeep to do may have been faster.
        if when == When::Changed && !tables.changed_slices().await?.contains(&slice) {
            return Ok(());
        }
        match tables.close_again(take(store).await?, slice).await {
            // Somebody else has taken upkeep over: a processor, which rests after it was refused, or another command. Of
            // two that took it from each other at once, none would ever come to an end.
            Err(UpkeepError::Fenced) => {
                let (_, random) = Uuid::now_v7().as_u64_pair();
                sleep(Duration::from_millis(random % longest)).await;
                longest = (2 * longest).min(LONGEST_REST);
            }
            outcome => return outcome,
        }
    }
}

/// Raises the epoch of upkeep, and returns it when nothing is written under an older one any more.
async fn take(store: &Store) -> Result<u64, StoreError> {
    Ok(store.fence(UPKEEP).await?.epoch)
}

fn is_due(done: Option<Instant>, every: Duration) -> bool {
    done.is_none_or(|done| done.elapsed() >= every)
}
