//! Taking a partition, so that nobody else can store rows of it, and finding out where to go on.
//!
//! Kafka's group says who should work on a partition; it does not stop a process that was thought dead. So the
//! right to insert is an epoch in ClickHouse, next to the rows that it guards:
//!
//! 1. write a higher epoch: inserts under an older one are refused from now on;
//! 2. wait until no insert is running that read the older one;
//! 3. read which generation of tables is current, and the last row stored there: nothing can be added behind it
//!    any more.

use std::time::Duration;

use chrono::TimeDelta;
use metrics::counter;
use schemas::clickhouse::Generation;
use schemas::row::source;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::log::{Extent, Log};
use crate::repeats::{MEMORY, MEMORY_IDS, Remembered};
use crate::retry::{Stopped, until_done};
use crate::store::{LastRow, Store};

/// The generation of the topic; a wiped Kafka would need a new one.
pub const TOPIC_GENERATION: u16 = 1;

/// How often older inserts are looked for while they are waited for.
const WAIT_OUT_INTERVAL: Duration = Duration::from_millis(100);

/// How far the clocks of brokers may be apart, and so how far broker time may step back within a partition.
const BROKER_SKEW: TimeDelta = TimeDelta::seconds(5);

/// The right to insert rows of a source, and where to go on.
#[derive(Debug)]
pub struct Ownership {
    /// What each insert carries.
    pub epoch: u64,
    /// The tables that the rows go into.
    pub generation: Generation,
    /// The offset from which on nothing is stored; messages below it are skipped.
    pub next: u64,
    /// The last stored row, if it is at or after the committed offset.
    pub last_row: Option<LastRow>,
    /// The marked clicks of the last hour.
    pub remembered: Remembered,
}

/// The log is not the one that the stored rows came from, so positions in it mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "partition {partition} of topic {topic} is not the log that its stored clicks came from: {evidence}. Its clicks \
     are neither counted nor lost; they wait in the topic. Bring the former log back, or stop the edges and keep \
     the new topic as it is: counting a wiped topic needs a new generation of it, for which this version has no \
     command yet (`processor adopt-topic` will be it)"
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
}

/// What is needed to take one partition, again and again.
#[derive(Debug, Clone)]
pub struct Claim {
    partition: i32,
    src: u32,
    store: Store,
    log: Log,
    stop: CancellationToken,
}

impl Claim {
    /// Prepares to take a partition; `stop` ends every attempt.
    pub fn new(partition: i32, store: Store, log: Log, stop: CancellationToken) -> Self {
        Self { partition, src: source_of(partition), store, log, stop }
    }

    /// Takes the partition, trying until both ClickHouse and Kafka have answered.
    ///
    /// `known` is the offset below which the caller itself knows everything to be done.
    ///
    /// # Errors
    /// [`TakeError::WrongLog`] when the log was wiped or replaced.
    pub async fn take(&self, known: u64) -> Result<Ownership, TakeError> {
        let Self { partition, src, store, log, stop } = self;
        let (partition, src) = (*partition, *src);
        let epoch = until_done("take the partition over", partition, stop, || store.raise_epoch(src)).await?;
        counter!("hopline_processor_takeovers_total").increment(1);
        self.wait_out(epoch).await?;
        // Read behind the epoch: a switch of generations that this reading misses has raised the epoch again.
        let generation =
            until_done("read the current generation", partition, stop, || store.current_generation()).await?;

        let committed =
            until_done("read the committed offset", partition, stop, || log.committed(partition)).await?;
        let floor = committed.unwrap_or(0).max(known);
        let last_row = until_done("read the last stored row", partition, stop, || {
            store.last_row(generation, src, floor)
        })
        .await?;
        let extent = until_done("read the log's end", partition, stop, || log.extent(partition)).await?;
        let first_later = match last_row {
            Some(row) => {
                let time = row.broker_ts + BROKER_SKEW;
                until_done("read the log by time", partition, stop, || log.first_after(partition, time))
                    .await?
            }
            None => None,
        };
        if let Some(evidence) = evidence_of_another_log(floor, last_row, extent, first_later) {
            return Err(WrongLog { topic: log.topic().to_owned(), partition, evidence }.into());
        }
        let next = match (committed, last_row) {
            // The first owner ever begins where the consumer does.
            (None, None) if known == 0 => extent.start,
            (_, None) => floor,
            (_, Some(row)) => row.koff + 1,
        };
        let remembered = self.remembered(generation, last_row).await?;
        tracing::info!(partition, src, epoch, next, "took partition {partition} over at offset {next}");
        Ok(Ownership { epoch, generation, next, last_row, remembered })
    }

    async fn wait_out(&self, epoch: u64) -> Result<(), Stopped> {
        let Self { partition, src, store, stop, .. } = self;
        let mut told = false;
        loop {
            let running =
                until_done("look for older inserts", *partition, stop, || store.older_inserts(*src, epoch))
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
        let Self { partition, src, store, stop, .. } = self;
        // Without a row behind the committed offset the time is not known; the clock of this process will do.
        let since = last_row.map_or_else(chrono::Utc::now, |row| row.broker_ts) - MEMORY;
        let marked = until_done("read the marked clicks of the last hour", *partition, stop, || {
            store.marked_since(generation, *src, since, MEMORY_IDS)
        })
        .await?;
        let mut remembered = Remembered::default();
        for (click_id, broker_ts) in marked {
            remembered.admit(&click_id, broker_ts);
        }
        Ok(remembered)
    }
}

/// Returns the source of a partition in the current generation of the topic.
pub const fn source_of(partition: i32) -> u32 {
    // Kafka numbers partitions from 0, and a topic of more than 65,536 is beyond what one cluster holds.
    source(TOPIC_GENERATION, partition as u16)
}

/// Returns what shows that the log was replaced or cut since rows of it were stored.
fn evidence_of_another_log(
    floor: u64,
    last_row: Option<LastRow>,
    extent: Extent,
    first_later: Option<u64>,
) -> Option<String> {
    let done = last_row.map_or(floor, |row| row.koff + 1);
    let end = extent.end;
    if end < done {
        return Some(format!("everything before offset {done} is done, but the log ends at {end}"));
    }
    // A new log may have grown beyond the old one's end, but its records are all later than any stored row.
    let row = last_row?;
    let later = first_later.filter(|offset| *offset <= row.koff)?;
    Some(format!(
        "the row of offset {} is older than the record of offset {later}, at or before it",
        row.koff
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(koff: u64) -> Option<LastRow> {
        Some(LastRow { koff, broker_ts: chrono::DateTime::UNIX_EPOCH })
    }

    fn extent(start: u64, end: u64) -> Extent {
        Extent { start, end }
    }

    #[test]
    fn a_log_that_holds_what_is_stored_is_accepted() {
        for (floor, last_row, extent, first_later) in [
            (0, None, extent(0, 0), None),
            (100, None, extent(0, 100), None),
            (50, row(99), extent(0, 100), None),
            (50, row(99), extent(0, 500), Some(120)),
            // Everything stored is gone by retention, and more.
            (50, row(99), extent(300, 500), Some(300)),
        ] {
            assert_eq!(evidence_of_another_log(floor, last_row, extent, first_later), None);
        }
    }

    #[test]
    fn a_log_that_ends_before_what_is_done_is_refused() {
        assert!(evidence_of_another_log(0, row(99), extent(0, 99), None).is_some());
        assert!(evidence_of_another_log(100, None, extent(0, 5), None).is_some());
    }

    #[test]
    fn a_new_log_that_has_outgrown_the_old_one_is_refused_by_its_times() {
        assert!(evidence_of_another_log(0, row(99), extent(0, 500), Some(0)).is_some());
        assert!(evidence_of_another_log(0, row(99), extent(0, 500), Some(99)).is_some());
    }

    #[test]
    fn sources_of_a_generation_are_next_to_each_other() {
        assert_eq!(source_of(0), 0x0001_0000);
        assert_eq!(source_of(5), 0x0001_0005);
    }
}
