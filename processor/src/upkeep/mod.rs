//! What is done to the tables beside inserting clicks: slices of the rollups are closed, deleted links' rows are
//! removed, and so are rows that no plan shows any more.
//!
//! One process does it at a time: the one that [`crate::intake`] says. As that is not certain, each of its inserts
//! is fenced as those of clicks are, under an epoch of its own: whoever raises it sees the tables as they will stay,
//! and what a former owner still sends is refused. What was broken off has written rows of a version that was never
//! put in force; they count nothing, and are removed.

mod purge;
mod retention;
mod slices;
mod tables;

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::NaiveDate;
use metrics::counter;
use schemas::clickhouse::Generation;
use schemas::clickhouse::rollup::{Run, Scope};
use schemas::row::UPKEEP;
use service::Shutdown;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

pub(crate) use retention::first_kept;
pub use tables::Tables;

use crate::log::{Log, LogError};
use crate::store::{InsertError, Store, StoreError};

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
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            look: Duration::from_secs(10),
            slice_delay: Duration::from_secs(600),
            purge: Duration::from_secs(600),
            retention: Duration::from_secs(24 * 3600),
        }
    }
}

/// Why upkeep was broken off; it begins again.
#[derive(Debug, thiserror::Error)]
pub enum UpkeepError {
    /// ClickHouse did not do it, or it is not known whether it did.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Kafka did not say which partitions there are.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Another process has upkeep to do.
    #[error("another processor has taken upkeep over")]
    Fenced,
    /// The rollups that were computed do not have the clicks that the raw rows have.
    #[error("the rollups of version {version} have other clicks than the raw rows: {found}")]
    Unequal {
        /// The version, which was not put in force.
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
    /// Whether rows may be there of versions that were never put in force.
    litter: bool,
}

impl Upkeep {
    fn new(store: Store, tables: Tables, log: Log, schedule: Schedule) -> Self {
        Self { store, tables, log, schedule, purged: None, expired: None, litter: true }
    }

    /// Does what is due, again and again.
    async fn work(&mut self) {
        tracing::info!("upkeep is this processor's to do");
        // The former owner may have been killed anywhere.
        self.litter = true;
        let mut ticks = interval(self.schedule.look);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.round().await {
                self.litter = true;
                counter!("hopline_processor_upkeep_failures_total").increment(1);
                tracing::warn!(error = &error as &dyn std::error::Error, "upkeep was broken off: {error}");
                sleep(AFTER_FAILURE).await;
            }
        }
    }

    async fn round(&mut self) -> Result<(), UpkeepError> {
        let generation = self.store.current_generation().await?;
        while self.close_next(generation).await? {}
        if is_due(self.purged, self.schedule.purge) {
            self.purge(generation).await?;
            self.purged = Some(Instant::now());
        }
        if self.litter {
            self.remove_litter(generation).await?;
            self.litter = false;
        }
        if is_due(self.expired, self.schedule.retention) {
            self.expire(generation).await?;
            self.erase(generation).await?;
            self.expired = Some(Instant::now());
        }
        Ok(())
    }

    /// Raises the epoch of upkeep, and returns it when nothing is written under an older one any more.
    async fn take(&self) -> Result<u64, UpkeepError> {
        Ok(self.store.fence(UPKEEP).await?.epoch)
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

/// Computes the rollups of slices in tables that are being made, and puts them in force, one slice after the other.
///
/// # Errors
/// When ClickHouse does not do it, or what was computed is not what the raw rows have.
pub(crate) async fn roll_up(
    store: Store,
    tables: Tables,
    log: Log,
    generation: Generation,
    slices: &BTreeSet<NaiveDate>,
) -> Result<(), UpkeepError> {
    let upkeep = Upkeep::new(store, tables, log, Schedule::default());
    for slice in slices {
        loop {
            let version = upkeep.take().await?;
            let run = Run { generation, scope: Scope::All, version, slices: vec![*slice] };
            match upkeep.run(&run).await {
                // The processor that has upkeep to do has taken it back, and rests for a while after this.
                Err(UpkeepError::Fenced) => {}
                outcome => {
                    outcome?;
                    break;
                }
            }
        }
        tracing::info!(%slice, "computed the rollups of {slice}");
    }
    Ok(())
}

fn is_due(done: Option<Instant>, every: Duration) -> bool {
    done.is_none_or(|done| done.elapsed() >= every)
}
