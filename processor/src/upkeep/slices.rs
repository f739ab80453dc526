//! Closing the slices of the rollups.

use std::time::Instant;

use chrono::{DateTime, Days, NaiveDate, Utc};
use metrics::{gauge, histogram};
use schemas::clickhouse::Generation;
use schemas::clickhouse::rollup::{self, Run, Scope};

use super::{Upkeep, UpkeepError};

impl Upkeep {
    /// Closes the next slice that can be closed, and the empty ones behind it; returns whether there was one.
    pub(super) async fn close_next(&self, generation: Generation) -> Result<bool, UpkeepError> {
        if self.next_slices(generation).await?.is_empty() {
            return Ok(false);
        }
        let version = self.take().await?;
        // Asked again: a former owner may have closed it until just before the epoch was raised.
        let slices = self.next_slices(generation).await?;
        let (Some(first), Some(last)) = (slices.first().copied(), slices.last().copied()) else {
            return Ok(false);
        };
        let started = Instant::now();
        self.run(&Run { generation, scope: Scope::All, version, slices }).await?;
        let seconds = started.elapsed().as_secs_f64();
        histogram!("hopline_processor_rollup_seconds").record(seconds);
        gauge!("hopline_processor_closed_until_seconds").set(end_of(last).timestamp() as f64);
        tracing::info!(%first, %last, version, seconds, "closed the slices from {first} to {last}");
        Ok(true)
    }

    /// Computes rollups, and puts them in force when they have exactly the clicks of the raw rows.
    pub(super) async fn run(&self, run: &Run) -> Result<(), UpkeepError> {
        let statements = run.statements();
        let Some((in_force, computing)) = statements.split_last() else { return Ok(()) };
        for statement in computing {
            self.tables.insert(statement, run.version).await?;
        }
        if let Some(found) = self.tables.difference(run).await? {
            return Err(UpkeepError::Unequal { version: run.version, found });
        }
        self.tables.insert(in_force, run.version).await
    }

    /// Removes rows of versions that were not put in force.
    ///
    /// Nobody can put them in force any more: a version is an epoch, and a higher one was raised.
    pub(super) async fn remove_litter(&self, generation: Generation) -> Result<(), UpkeepError> {
        let epoch = self.take().await?;
        let litter = format!("NOT ({}) AND version < {epoch}", rollup::in_force(generation));
        for table in [generation.counts(), generation.breakdowns()] {
            let rows = self.tables.delete(&table, &litter).await?;
            if rows > 0 {
                tracing::info!(
                    table,
                    rows,
                    "removed {rows} rows that were never in force or are not any more"
                );
            }
        }
        Ok(())
    }

    /// Returns the slices to be closed by one run: one that has rows and those without behind it, as far as every
    /// partition is beyond their ends.
    async fn next_slices(&self, generation: Generation) -> Result<Vec<NaiveDate>, UpkeepError> {
        let Some(first) = self.tables.first_open_slice(generation).await? else { return Ok(Vec::new()) };
        let Some(counted) = self.counted_until().await? else { return Ok(Vec::new()) };
        let next_with_rows = self.tables.slice_with_rows_after(generation, first).await?;
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
        let (progress, sources) = (self.tables.progress().await?, self.store.sources().await?);
        let counted: Option<Vec<DateTime<Utc>>> =
            (0..partitions).map(|partition| progress.get(&sources.of(partition)).copied()).collect();
        Ok(counted.and_then(|counted| counted.into_iter().min()))
    }
}

/// Returns when a broker's day is over.
fn end_of(slice: NaiveDate) -> DateTime<Utc> {
    let next = slice.checked_add_days(Days::new(1)).unwrap_or(slice);
    next.and_time(chrono::NaiveTime::MIN).and_utc()
}
