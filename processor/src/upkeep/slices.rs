//! Closing the slices of the rollups.

use std::collections::BTreeSet;
use std::time::Instant;

use chrono::{DateTime, Days, NaiveDate, Utc};
use metrics::{counter, gauge, histogram};
use schemas::clickhouse::rollup::{Run, Scope, last_day_of_month, may_be_read};

use super::{Tables, Upkeep, UpkeepError, take};

impl Upkeep {
    /// Closes the next slice that can be closed, and the empty ones behind it; returns whether there was one.
    pub(super) async fn close_next(&self, now: DateTime<Utc>) -> Result<bool, UpkeepError> {
        if self.next_slices(now).await?.is_empty() {
            return Ok(false);
        }
        let version = take(&self.store).await?;
        // Asked again: a former owner may have closed it until just before the epoch was raised.
        let slices = self.next_slices(now).await?;
        let (Some(first), Some(last)) = (slices.first().copied(), slices.last().copied()) else {
            return Ok(false);
        };
        let started = Instant::now();
        self.tables.close(version, slices).await?;
        let seconds = started.elapsed().as_secs_f64();
        histogram!("hopline_processor_rollup_seconds").record(seconds);
        gauge!("hopline_processor_closed_until_seconds").set(end_of(last).timestamp() as f64);
        tracing::info!(%first, %last, version, seconds, "closed the slices from {first} to {last}");
        Ok(true)
    }

    /// Closes the first slice again whose clicks have changed since it was closed: by a click that came later than any
    /// should, or because its day was made again by somebody who was killed behind that. Returns whether there was one.
    pub(super) async fn close_again(&mut self) -> Result<bool, UpkeepError> {
        let Some(slice) = self.tables.changed_slices().await?.pop_first() else { return Ok(false) };
        self.note_litter();
        let version = take(&self.store).await?;
        self.tables.close_again(version, slice).await?;
        counter!("hopline_processor_slices_closed_again_total").increment(1);
        tracing::info!(%slice, version, "closed slice {slice} again: its clicks have changed since");
        Ok(true)
    }

    /// Removes rows of versions that nobody reads: another one is active since a while, or they never were.
    ///
    /// Nobody can activate them any more: a version is an epoch, and a higher one was raised.
    pub(super) async fn remove_litter(&self) -> Result<(), UpkeepError> {
        let epoch = take(&self.store).await?;
        let litter = format!("NOT {} AND version < {epoch}", may_be_read(self.schedule.read_on));
        for table in ["counts", "breakdowns"] {
            let rows = self.tables.delete(table, &litter).await?;
            if rows > 0 {
                tracing::info!(table, rows, "removed {rows} rows that are not active");
            }
        }
        Ok(())
    }

    /// Returns the slices to be closed by one run: one that has rows and those without behind it, as far as every
    /// partition, and the clock, are beyond their ends.
    async fn next_slices(&self, now: DateTime<Utc>) -> Result<Vec<NaiveDate>, UpkeepError> {
        let Some(first) = self.tables.first_open_slice().await? else { return Ok(Vec::new()) };
        let Some(counted) = self.counted_until().await? else { return Ok(Vec::new()) };
        let counted = counted.min(now);
        let next_with_rows = self.tables.slice_with_rows_after(first).await?;
        let delay = self.schedule.slice_delay;
        Ok(first
            .iter_days()
            .take_while(|slice| counted >= end_of(*slice) + delay)
            .take_while(|slice| next_with_rows.is_none_or(|next| *slice < next))
            .collect())
    }

    /// Returns up to when the clicks of all partitions are counted; `None` while one has never said so.
    async fn counted_until(&self) -> Result<Option<DateTime<Utc>>, UpkeepError> {
        let partitions = self.log.partitions().await?;
        let (progress, sources) = (self.store.progress().await?, self.store.sources().await?);
        let counted: Option<Vec<DateTime<Utc>>> =
            (0..partitions).map(|partition| progress.get(&sources.of(partition)).copied()).collect();
        Ok(counted.and_then(|counted| counted.into_iter().min()))
    }
}

impl Tables {
    /// Closes a slice again, and that of its month's last day, which has a fold of all its days, as far as they are closed.
    pub(super) async fn close_again(&self, version: u64, slice: NaiveDate) -> Result<(), UpkeepError> {
        let Some(last_closed) = self.last_closed_slice().await? else { return Ok(()) };
        let slices: BTreeSet<NaiveDate> =
            [slice, last_day_of_month(slice)].into_iter().filter(|slice| *slice <= last_closed).collect();
        self.close(version, slices).await
    }

    /// Closes slices with the clicks that they have now.
    async fn close(
        &self,
        version: u64,
        slices: impl IntoIterator<Item = NaiveDate>,
    ) -> Result<(), UpkeepError> {
        // Before anything is computed: what comes from now on shows.
        let blocks = self.last_blocks().await?;
        let block = |slice| (slice, blocks.get(&slice).copied().unwrap_or(-1));
        let slices = slices.into_iter().map(block).collect();
        self.run(&Run { scope: Scope::All, version, slices }).await
    }

    /// Computes rollups, and activates them when they have exactly the clicks of the raw rows.
    pub(super) async fn run(&self, run: &Run) -> Result<(), UpkeepError> {
        let statements = run.statements();
        let Some((activate, computing)) = statements.split_last() else { return Ok(()) };
        for statement in computing {
            self.insert(statement, run.version).await?;
        }
        if let Some(found) = self.difference(run).await? {
            return Err(UpkeepError::Unequal { version: run.version, found });
        }
        self.insert(activate, run.version).await
    }
}

/// Returns when a broker's day is over.
fn end_of(slice: NaiveDate) -> DateTime<Utc> {
    let next = slice.checked_add_days(Days::new(1)).unwrap_or(slice);
    next.and_time(chrono::NaiveTime::MIN).and_utc()
}
