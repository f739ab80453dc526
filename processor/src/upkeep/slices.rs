//! Closes the slices of the rollups.

use std::collections::BTreeSet;
use std::time::Instant;

use chrono::{DateTime, Days, NaiveDate, NaiveTime, Utc};
use futures_util::future::try_join_all;
use metrics::{counter, gauge, histogram};
use schemas::clickhouse::rollup::{Run, Scope, last_day_of_month, may_be_read};
use schemas::row::UPKEEP;
use service::metrics::UNKNOWN;
use uuid::Uuid;

use super::{Upkeep, UpkeepError, UpkeepStore, raise_epoch};
use crate::clickhouse::statements::Statements;
use crate::clickhouse::{FencingToken, StoreError};
use crate::pipeline::log::LogError;

impl Upkeep {
    /// Updates the metric of closed days, which exists only in the process that closes them.
    pub(super) async fn report_closed(&self) -> Result<(), UpkeepError> {
        let until =
            self.tables.first_open_slice().await?.map(|slice| slice.and_time(NaiveTime::MIN).and_utc());
        Self::set_closed_until(until.map_or(UNKNOWN, |until| until.timestamp() as f64));
        Ok(())
    }

    pub(super) fn set_closed_until(seconds: f64) {
        gauge!("hopline_processor_closed_until_seconds").set(seconds);
    }

    /// Closes the next slice that can be closed, and the empty ones after it; returns whether there was one.
    pub(super) async fn close_next(&self, now: DateTime<Utc>) -> Result<bool, UpkeepError> {
        if self.next_slices(now).await?.is_empty() {
            return Ok(false);
        }
        let version = raise_epoch(&self.store).await?;
        // Read again: a former owner may have closed it before the epoch was raised.
        let slices = self.next_slices(now).await?;
        let (Some(first), Some(last)) = (slices.first().copied(), slices.last().copied()) else {
            return Ok(false);
        };
        let started = Instant::now();
        self.tables.close(version, slices).await?;
        let seconds = started.elapsed().as_secs_f64();
        histogram!("hopline_processor_rollup_seconds").record(seconds);
        tracing::info!(%first, %last, version, seconds, "closed the slices from {first} to {last}");
        Ok(true)
    }

    /// Closes again the first slice whose clicks have changed since it was closed: by a very late click, or by a
    /// rebuild that was killed before it closed the slice. Returns whether there was one.
    pub(super) async fn close_again(&self) -> Result<bool, UpkeepError> {
        let Some(slice) = self.tables.changed_slices().await?.pop_first() else { return Ok(false) };
        let version = raise_epoch(&self.store).await?;
        self.tables.close_again(version, slice).await?;
        counter!("hopline_processor_slices_closed_again_total").increment(1);
        tracing::info!(%slice, version, "closed slice {slice} again: its clicks have changed since");
        Ok(true)
    }

    /// Removes rows of versions that no query reads: another version replaced them a while ago, or they were never
    /// active.
    ///
    /// They cannot become active any more: a version is an epoch, and every replica knows a higher one. The version of
    /// a run that is at work is the highest epoch. Returns false, and removes nothing, while a replica does not answer.
    pub(super) async fn remove_orphaned_rows(&self) -> Result<bool, UpkeepError> {
        let known = async {
            let epoch = self.store.epoch(UPKEEP).await?;
            self.store.make_known_to_all(FencingToken { src: UPKEEP, epoch }).await?;
            self.tables.sync().await?;
            Ok::<_, StoreError>(epoch)
        };
        let epoch = match known.await {
            Ok(epoch) => epoch,
            Err(error) => {
                tracing::debug!(%error, "former rollups stay until every replica answers: {error}");
                return Ok(false);
            }
        };
        let orphaned = format!("NOT {} AND version < {epoch}", may_be_read(self.schedule.read_on));
        // Rows of links are of the version of the slice, those of a workspace may have one of their own.
        let of_workspace = format!("link_id = toUUID('{}')", Uuid::nil());
        let key = format!(
            "if({of_workspace}, workspace_id, toUUID('{}')), slice, version, {of_workspace}",
            Uuid::nil()
        );
        for table in ["counts", "breakdowns"] {
            let rows = self.tables.delete_by(table, &key, &orphaned).await?;
            if rows > 0 {
                tracing::info!(table, rows, "removed {rows} rows of inactive versions from {table}");
            }
        }
        Ok(true)
    }

    /// Returns the slices to close in one run: one with rows and the empty ones after it, as far as every partition and
    /// the clock are past their ends.
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

    /// Returns the time up to which all partitions are counted; `None` while one has no progress yet, or there is no
    /// topic.
    async fn counted_until(&self) -> Result<Option<DateTime<Utc>>, UpkeepError> {
        let partitions = match self.log.partitions().await {
            // Deleted rows go all the same.
            Err(LogError::NoTopic(_)) => return Ok(None),
            partitions => partitions?,
        };
        let (progress, sources) = (self.store.progress().await?, self.store.sources().await?);
        let counted: Option<Vec<DateTime<Utc>>> =
            (0..partitions).map(|partition| progress.get(&sources.of(partition)).copied()).collect();
        Ok(counted.and_then(|counted| counted.into_iter().min()))
    }
}

impl UpkeepStore {
    /// Closes a slice again, and the last one of its month, which holds the month's rollups, if they are closed.
    pub(super) async fn close_again(&self, version: u64, slice: NaiveDate) -> Result<(), UpkeepError> {
        let Some(last_closed) = self.last_closed_slice().await? else { return Ok(()) };
        let slices: BTreeSet<NaiveDate> =
            [slice, last_day_of_month(slice)].into_iter().filter(|slice| *slice <= last_closed).collect();
        self.close(version, slices).await
    }

    /// Closes slices with their current clicks.
    async fn close(
        &self,
        version: u64,
        slices: impl IntoIterator<Item = NaiveDate>,
    ) -> Result<(), UpkeepError> {
        self.sync().await?;
        // Read before computing, so that clicks that arrive from now on are noticed.
        let blocks = self.last_blocks().await?;
        let block = |slice| (slice, blocks.get(&slice).copied().unwrap_or(-1));
        let slices = slices.into_iter().map(block).collect();
        self.run(&Run { scope: Scope::All, version, slices }).await
    }

    /// Computes rollups, on all shards at once, and activates them if they match the raw rows exactly.
    pub(super) async fn run(&self, run: &Run) -> Result<(), UpkeepError> {
        let statements = run.statements();
        let Some((activate, computing)) = statements.split_last() else { return Ok(()) };
        let shards = self.statements.each_shard().await?;
        try_join_all(shards.iter().map(|shard| Self::compute(shard, run, computing))).await?;
        Ok(Self::insert(&self.statements, activate, run.version).await?)
    }

    /// Computes the rollups of a shard's clicks.
    async fn compute(shard: &Statements, run: &Run, statements: &[String]) -> Result<(), UpkeepError> {
        // The version is an epoch, which its replica must know, and what decides which rows count.
        shard.client.catch_up(&["owners", "slices", "deleted_links"]).await.map_err(StoreError::from)?;
        for statement in statements {
            Self::insert(shard, statement, run.version).await?;
        }
        match Self::difference(shard, run).await? {
            Some(found) => Err(UpkeepError::Unequal { version: run.version, found }),
            None => Ok(()),
        }
    }
}

/// Returns when a slice ends.
fn end_of(slice: NaiveDate) -> DateTime<Utc> {
    let next = slice.checked_add_days(Days::new(1)).unwrap_or(slice);
    next.and_time(NaiveTime::MIN).and_utc()
}
