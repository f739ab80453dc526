//! Taking a partition, so that nobody else can store rows of it, and finding out where to go on.
//!
//! Kafka's group says who should work on a partition; it does not stop a process that was thought dead. So the
//! right to insert is an epoch in ClickHouse, next to the rows that it guards:
//!
//! 1. write a higher epoch: inserts under an older one are refused from now on;
//! 2. wait until no insert is running that read the older one;
//! 3. read whether the partition still has this source, which generation of tables is current, and the last row
//!    stored there: nothing can be added behind it any more.

use chrono::TimeDelta;
use metrics::counter;
use schemas::clickhouse::Generation;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::log::{Extent, Log, LogError};
use crate::repeats::{MEMORY, MEMORY_IDS, Remembered};
use crate::retry::{Stopped, until_done};
use crate::store::{LastRow, Store, WAIT_OUT_INTERVAL};

/// How far the clocks of brokers may be apart, and so how far broker time may step back within a partition.
pub(crate) const BROKER_SKEW: TimeDelta = TimeDelta::seconds(5);

/// How many offsets before the committed one the last row is looked for. Between the two are dead letters, repeats and
/// clicks of deleted links; the row tells by its time whether the log is the one that it came from.
const EVIDENCE: u64 = 100_000;

/// The right to insert rows of a source, and where to go on.
#[derive(Debug)]
pub struct Ownership {
    /// The partition's source; see [`schemas::row::source`].
    pub src: u32,
    /// What each insert carries.
    pub epoch: u64,
    /// The tables that the rows go into.
    pub generation: Generation,
    /// The offset from which on nothing is stored; messages below it are skipped.
    pub next: u64,
    /// The last stored row, if it is not long before the committed offset.
    pub last_row: Option<LastRow>,
    /// The marked clicks of the last hour.
    pub remembered: Remembered,
}

/// The log is not the one that the stored rows came from, so positions in it mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "partition {partition} of topic {topic} is not the log that its stored clicks came from: {evidence}. Its clicks \
     are neither counted nor lost; they wait in the topic. Bring the former log back, or run `processor adopt-topic`: \
     it keeps what is counted, and clicks of the new log are counted from its start"
)]
pub struct WrongLog {
    topic: String,
    partition: i32,
    evidence: String,
}

/// Why a partition was not taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// It was given back meanwhile.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// It must not be taken.
    #[error(transparent)]
    WrongLog(#[from] WrongLog),
    /// It has another source than before: offsets of what was read mean nothing any more.
    #[error("the partition's log was replaced, and adopted")]
    Adopted,
}

/// What whoever had a partition before knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The source that it had.
    pub src: u32,
    /// The offset below which everything is done.
    pub next: u64,
}

/// What is needed to take one partition, again and again.
#[derive(Debug, Clone)]
pub struct Claim {
    partition: i32,
    store: Store,
    log: Log,
    stop: CancellationToken,
}

impl Claim {
    /// Prepares to take a partition; `stop` ends every attempt.
    pub fn new(partition: i32, store: Store, log: Log, stop: CancellationToken) -> Self {
        Self { partition, store, log, stop }
    }

    /// Takes the partition, trying until both ClickHouse and Kafka have answered.
    ///
    /// `known` is what the caller itself knows, if it had the partition before.
    ///
    /// # Errors
    /// [`TakeError::WrongLog`] when the log was wiped or replaced, and [`TakeError::Adopted`] when that is settled.
    pub async fn take(&self, known: Option<Known>) -> Result<Ownership, TakeError> {
        let Self { partition, store, log, stop } = self;
        let partition = *partition;
        let (src, epoch) = loop {
            let src = self.source().await?;
            if known.is_some_and(|known| known.src != src) {
                return Err(TakeError::Adopted);
            }
            let epoch =
                until_done("take the partition over", partition, stop, || store.raise_epoch(src)).await?;
            counter!("hopline_processor_takeovers_total").increment(1);
            self.wait_out(src, epoch).await?;
            // Read behind the epoch: from here on nobody can end this source without raising it again.
            if self.source().await? == src {
                break (src, epoch);
            }
        };
        // Read behind the epoch: a switch of generations that this reading misses has raised the epoch again.
        let generation =
            until_done("read the current generation", partition, stop, || store.current_generation()).await?;

        let committed =
            until_done("read the committed offset", partition, stop, || log.committed(src)).await?;
        let floor = committed.unwrap_or(0).max(known.map_or(0, |known| known.next));
        let last_row = until_done("read the last stored row", partition, stop, || {
            store.last_row(generation, src, floor.saturating_sub(EVIDENCE))
        })
        .await?;
        let extent = until_done("read the log's end", partition, stop, || log.extent(partition)).await?;
        let evidence = until_done("compare the log with the last row", partition, stop, || {
            evidence_of_another_log(log, partition, floor, last_row, extent)
        })
        .await?;
        if let Some(evidence) = evidence {
            return Err(WrongLog { topic: log.topic().to_owned(), partition, evidence }.into());
        }
        let next = match (committed, last_row) {
            // The first owner ever begins where the consumer does.
            (None, None) if floor == 0 => extent.start,
            (_, last_row) => behind(floor, last_row),
        };
        let remembered = self.remembered(generation, last_row).await?;
        tracing::info!(partition, src, epoch, next, "took partition {partition} over at offset {next}");
        Ok(Ownership { src, epoch, generation, next, last_row, remembered })
    }

    /// Returns whether the log still has the record of an offset.
    pub async fn log_holds(&self, offset: u64) -> Result<bool, Stopped> {
        let Self { partition, log, stop, .. } = self;
        let extent = until_done("read the log's start", *partition, stop, || log.extent(*partition)).await?;
        Ok(extent.start <= offset && offset < extent.end)
    }

    async fn source(&self) -> Result<u32, Stopped> {
        let Self { partition, store, stop, .. } = self;
        let sources =
            until_done("read the topic's generations", *partition, stop, || store.sources()).await?;
        Ok(sources.of(*partition))
    }

    async fn wait_out(&self, src: u32, epoch: u64) -> Result<(), Stopped> {
        let Self { partition, store, stop, .. } = self;
        let mut told = false;
        loop {
            let running =
                until_done("look for older inserts", *partition, stop, || store.older_inserts(src, epoch))
                    .await?;
            if running == 0 {
                return Ok(());
            }
            if !std::mem::replace(&mut told, true) {
                tracing::info!(partition, running, "waiting for {running} inserts of a former owner to end");
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(Stopped),
                () = sleep(WAIT_OUT_INTERVAL) => {}
            }
        }
    }

    /// Loads the marked clicks of the hour before the last row: their first copies may still come.
    async fn remembered(
        &self,
        generation: Generation,
        last_row: Option<LastRow>,
    ) -> Result<Remembered, Stopped> {
        let Self { partition, store, stop, .. } = self;
        // Without a row near the committed offset the time is not known; the clock of this process will do.
        let since = last_row.map_or_else(chrono::Utc::now, |row| row.broker_ts) - MEMORY;
        let marked = until_done("read the marked clicks of the last hour", *partition, stop, || {
            store.marked_since(generation, *partition, since, MEMORY_IDS)
        })
        .await?;
        let mut remembered = Remembered::default();
        for (click_id, broker_ts) in marked {
            remembered.admit(&click_id, broker_ts);
        }
        Ok(remembered)
    }
}

/// Returns the offset behind everything that is done: below `floor`, and up to the last row.
pub(crate) fn behind(floor: u64, last_row: Option<LastRow>) -> u64 {
    last_row.map_or(floor, |row| floor.max(row.koff + 1))
}

/// Returns what shows that the log was replaced or cut since rows of it were stored.
///
/// # Errors
/// When Kafka does not answer.
pub(crate) async fn evidence_of_another_log(
    log: &Log,
    partition: i32,
    floor: u64,
    last_row: Option<LastRow>,
    extent: Extent,
) -> Result<Option<String>, LogError> {
    let done = behind(floor, last_row);
    let end = extent.end;
    if end < done {
        return Ok(Some(format!("everything before offset {done} is done, but the log ends at {end}")));
    }
    let Some(row) = last_row else { return Ok(None) };
    // A new log may have grown beyond the old one's end, but its records are all later than any stored row.
    let later = log.first_after(partition, row.broker_ts).await?;
    let Some(later) = later.filter(|offset| *offset <= row.koff) else { return Ok(None) };
    // Or the clocks of two brokers differ, one of which followed the other. The row's own record tells.
    let own = if extent.start <= row.koff { log.time_of(partition, row.koff).await? } else { None };
    let is_own = match own {
        Some(own) => own == row.broker_ts,
        None => {
            let much_later = log.first_after(partition, row.broker_ts + BROKER_SKEW).await?;
            much_later.is_none_or(|offset| offset > row.koff)
        }
    };
    Ok((!is_own).then(|| {
        format!("the row of offset {} is older than the record of offset {later}, at or before it", row.koff)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_reaches_behind_the_last_row_and_what_was_committed() {
        let row = |koff| Some(LastRow { koff, broker_ts: chrono::DateTime::UNIX_EPOCH });
        for (floor, last_row, done) in
            [(0, None, 0), (100, None, 100), (100, row(90), 100), (100, row(120), 121)]
        {
            assert_eq!(behind(floor, last_row), done);
        }
    }
}
