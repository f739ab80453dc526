//! Closes slices, purges deleted links, removes rows that no plan shows any more, and counts conversions.
//!
//! One process at a time does this: the one that [`crate::pipeline::intake`] selects. Two may still overlap, so each
//! insert is fenced under upkeep's own epoch, as inserts of clicks are: after the epoch is raised, a former owner's
//! inserts fail. Interrupted work leaves rows of a version that was never activated. They are not counted, and are
//! removed later. Conversions need no fence: counting one again changes no number.

mod purge;
mod retention;
mod slices;
mod store;
mod turn;
mod waiting;

use std::time::Duration;

use chrono::NaiveDate;
use metrics::counter;
use schemas::row::UPKEEP;
use service::metrics::UNKNOWN;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use uuid::Uuid;

pub(crate) use retention::first_kept;
pub use store::UpkeepStore;
pub use turn::Turn;
pub use waiting::count_conversions;

use crate::clickhouse::clock::{Clock, ClocksDiffer};
use crate::clickhouse::{InsertError, Store, StoreError};
use crate::pipeline::log::{Log, LogError};

/// Pause after a failure; meanwhile a former owner learns that it lost upkeep.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The intervals of upkeep.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// How often upkeep checks whether a slice can be closed.
    pub look: Duration,
    /// How far every partition must be past a slice's end before the slice is closed.
    pub slice_delay: Duration,
    /// How often rows of deleted links are removed.
    pub purge: Duration,
    /// How often rows that no plan shows any more are removed, and deleted rows are removed from the disk.
    pub retention: Duration,
    /// How long a former version may still be read after another one became active; longer than any query may take.
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

/// Upper limits, in milliseconds, of a command's random pause after another process took over: the first one, and the
/// highest.
const FIRST_BACKOFF: u64 = 2_000;
const MAX_BACKOFF: u64 = 30_000;

/// Why upkeep was interrupted; it starts again.
#[derive(Debug, thiserror::Error)]
pub enum UpkeepError {
    /// A statement failed, or its outcome is unknown.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Kafka did not return the partitions.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The clocks differ, so the time is uncertain.
    #[error(transparent)]
    Clocks(#[from] ClocksDiffer),
    /// Another process has taken over.
    #[error("another process has taken over upkeep")]
    Fenced,
    /// The computed rollups and the raw rows have different clicks.
    #[error(
        "the rollups of version {version} do not match the raw rows, so they were not activated: {found}"
    )]
    Unequal {
        /// The version, which was not activated.
        version: u64,
        /// What was counted.
        found: String,
    },
}

/// Runs upkeep while it is this process's turn, until a stop is requested.
pub async fn upkeep(store: Store, tables: UpkeepStore, log: Log, schedule: Schedule, mut turn: Turn) {
    let mut upkeep = Upkeep::new(store, tables, log, schedule);
    while turn.begins().await {
        if turn.ends_during(upkeep.work()).await {
            tracing::info!("upkeep moved to another processor");
            Upkeep::set_closed_until(UNKNOWN);
        }
    }
}

/// Upkeep of the tables.
#[derive(Debug)]
pub struct Upkeep {
    store: Store,
    /// Those of the replica that this round stays with.
    tables: UpkeepStore,
    of_any_replica: UpkeepStore,
    log: Log,
    schedule: Schedule,
    purged: Option<Instant>,
    expired: Option<Instant>,
    /// The newest version when it was last looked for.
    newest_version: Option<u64>,
    /// Since when there may be rows of versions that no query reads.
    orphans_since: Option<Instant>,
}

impl Upkeep {
    fn new(store: Store, tables: UpkeepStore, log: Log, schedule: Schedule) -> Self {
        let of_any_replica = tables.clone();
        Self {
            store,
            tables,
            of_any_replica,
            log,
            schedule,
            purged: None,
            expired: None,
            newest_version: None,
            orphans_since: None,
        }
    }

    /// Runs what is due, forever.
    async fn work(&mut self) {
        tracing::info!("this processor runs upkeep now");
        let mut ticks = interval(self.schedule.look);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.round().await {
                counter!("hopline_processor_upkeep_failures_total").increment(1);
                tracing::warn!(error = &error as &dyn std::error::Error, "upkeep was interrupted: {error}");
                sleep(AFTER_FAILURE).await;
            }
        }
    }

    async fn round(&mut self) -> Result<(), UpkeepError> {
        // What one statement of a round finds, the next ones find too.
        self.tables = self.of_any_replica.pinned();
        self.tables.choose_complete().await?;
        // First, so that a failure below does not hide for how long days have been open.
        self.report_closed().await?;
        let now = Clock::read(&self.store).await?.agreed()?;
        while self.close_next(now).await? {}
        while self.close_again().await? {}
        if is_due(self.purged, self.schedule.purge) {
            self.purge().await?;
            self.purged = Some(Instant::now());
        }
        // This process, a former owner or an operator's command may have replaced a version.
        let newest_version = self.tables.newest_version().await?;
        if newest_version != self.newest_version {
            self.newest_version = newest_version;
            self.orphans_since = Some(Instant::now());
        }
        // Queries that started before another version became active still read the former one.
        if self.orphans_since.is_some_and(|since| since.elapsed() > self.schedule.read_on) {
            let are_removed = self.remove_orphaned_rows().await?;
            self.orphans_since = (!are_removed).then(Instant::now);
        }
        if is_due(self.expired, self.schedule.retention) {
            self.expire(now.date_naive()).await?;
            self.erase().await?;
            self.expired = Some(Instant::now());
        }
        Ok(())
    }
}

impl From<InsertError> for UpkeepError {
    fn from(error: InsertError) -> Self {
        match error {
            InsertError::Fenced => Self::Fenced,
            InsertError::InDoubt(error) => Self::Store(error),
        }
    }
}

/// When a slice is closed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// When its clicks have changed since it was closed.
    Changed,
    /// Even when its clicks are unchanged.
    Always,
}

/// Closes a slice again, if it is closed.
///
/// # Errors
/// When ClickHouse fails, or the computed rollups do not match the raw rows.
pub(crate) async fn close_again(
    store: &Store,
    tables: &UpkeepStore,
    slice: NaiveDate,
    when: When,
) -> Result<(), UpkeepError> {
    let mut limit = FIRST_BACKOFF;
    loop {
        // The processor that runs upkeep may have closed it already.
        if when == When::Changed && !tables.changed_slices().await?.contains(&slice) {
            return Ok(());
        }
        let closed = async { tables.close_again(raise_epoch(store).await?, slice).await };
        match closed.await {
            // A processor, which pauses after it was fenced, or another command has taken over. The random pause keeps
            // two commands from fencing each other forever.
            Err(UpkeepError::Fenced) => {
                let (_, random) = Uuid::now_v7().as_u64_pair();
                sleep(Duration::from_millis(random % limit)).await;
                limit = (2 * limit).min(MAX_BACKOFF);
            }
            outcome => return outcome,
        }
    }
}

/// Raises the epoch of upkeep and returns it once no statement runs under an older one.
async fn raise_epoch(store: &Store) -> Result<u64, UpkeepError> {
    match store.fence(UPKEEP).await {
        Err(StoreError::Preceded) => Err(UpkeepError::Fenced),
        fenced => Ok(fenced?.epoch),
    }
}

fn is_due(done: Option<Instant>, every: Duration) -> bool {
    done.is_none_or(|done| done.elapsed() >= every)
}
