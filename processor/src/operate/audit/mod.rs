//! `processor audit`: counts everything again, and compares the results.
//!
//! It makes three comparisons, each with bounded memory:
//!
//! - Each counted record that the log still holds has a row at its position that matches the record and later recounts,
//!   or it is a dead letter, a repeat, expired, or of a deleted link; and each row of that range has a record. Both are
//!   read side by side in the order of offsets.
//! - No position and no possible repeat has two rows, also where the log no longer holds the records.
//! - The active rollups of each closed slice match its raw rows.
//!
//! Rows of replaced logs and of the truncated part of a log have no records to compare with. The report names them, and
//! the second and third comparison include them.
//!
//! Processors may keep running. When they change the tables during an audit, a difference is checked again.

mod log;
mod replicas;
pub mod report;
pub mod scheduled;
mod store;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use chrono::{NaiveDate, Utc};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use schemas::topic;
use service::clickhouse::Clickhouse;
use uuid::Uuid;

use self::log::{Compare, Kept, Letters, letters};
use self::report::{Difference, Kind, Report, Source};
use self::store::AuditStore;
use crate::Config;
use crate::clickhouse::sources::Sources;
use crate::clickhouse::{Position, Store};
use crate::operate::applied_recounts::AppliedRecounts;
use crate::operate::reading::{GROUP, Part};
use crate::pipeline::deleted_links::DeletedLinks;
use crate::pipeline::log::Log;
use crate::upkeep::first_kept;

/// Sources that are compared concurrently.
const SOURCES: usize = 3;

/// Maximum raw rows and days that one statement compares with their rollups.
const SLICE_ROWS: u64 = 2_000_000;
const SLICE_DAYS: usize = 62;

/// Maximum audits when the tables change meanwhile.
const ATTEMPTS: usize = 3;

/// Compares the log, the raw rows and the rollups.
///
/// # Errors
/// When one of them cannot be read.
pub async fn audit(config: &Config) -> anyhow::Result<Report> {
    let store = config.store("audit");
    let mut attempt = 1;
    loop {
        config.upkeep_store().sync().await.context("a replica of ClickHouse lacks rows of another one")?;
        let tables =
            AuditStore::new(&Clickhouse::new(&config.clickhouse)).await.context("cannot reach ClickHouse")?;
        let before = tables.fingerprint().await.context("cannot read the tables")?;
        let mut report = Audit { config, store: &store, tables }.run().await?;
        report.equal = report.difference_count == 0;
        let tables =
            AuditStore::new(&Clickhouse::new(&config.clickhouse)).await.context("cannot reach ClickHouse")?;
        let is_one_state = tables.fingerprint().await.context("cannot read the tables")? == before;
        // A purge may have been running when the audit started, so a difference is checked at least twice.
        if report.equal || attempt >= ATTEMPTS || (attempt > 1 && is_one_state) {
            return Ok(report);
        }
        tracing::info!("found {} differences, repeating the audit", report.difference_count);
        attempt += 1;
    }
}

struct Audit<'a> {
    config: &'a Config,
    store: &'a Store,
    tables: AuditStore,
}

impl Audit<'_> {
    async fn run(mut self) -> anyhow::Result<Report> {
        let mut report = Report::default();
        let compared = self.compare_log(&mut report).await?;
        self.compare_tables(&compared, &mut report).await?;
        Ok(report)
    }

    async fn compare_tables(
        &mut self,
        compared: &[(u32, u64, u64)],
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let tables = &mut self.tables;
        tables.awaiting_purge =
            tables.workspaces_awaiting_purge().await.context("cannot read the deleted links")?;
        report.awaiting_purge = tables.awaiting_purge.len();
        self.compare_rows(compared, report).await.context("cannot read the raw rows")?;
        self.compare_rollups(report).await.context("cannot read the rollups")?;
        let unequal = self.tables.unequal_replicas(compared).await.context("cannot compare the replicas")?;
        unequal.into_iter().for_each(|difference| report.differs(difference));
        Ok(())
    }

    /// Compares the log with the raw rows, and returns the compared ranges.
    async fn compare_log(&self, report: &mut Report) -> anyhow::Result<Vec<(u32, u64, u64)>> {
        let Self { config, store, tables } = self;
        let clicks: Arc<str> = config.kafka.topic(topic::CLICKS.name).into();
        let log = config.log()?;
        let partitions = log.partitions().await.context("cannot ask Kafka for the topic of clicks")?;
        let current = store.sources().await.context("cannot read the partitions' logs")?;
        let mut sources = Vec::new();
        for partition in 0..partitions {
            sources.extend(self.extents(&log, &current, partition).await?);
        }
        let logs: Vec<_> = (0..partitions).flat_map(|partition| current.of_topic(partition)).collect();
        report.former = tables.former(&logs).await.context("cannot read the raw rows")?;
        // Read after the logs' ends, because a dead letter is written before its offset counts as done.
        let letters = self.letters(&clicks).await?;
        let deleted_links = DeletedLinks::default();
        deleted_links.refresh(store).await.context("cannot read the deleted links")?;
        let kept = self.kept().await?;
        let recounts =
            AppliedRecounts::read(&tables.statements).await.context("cannot read the changes of recounts")?;
        let compare = &Compare {
            kafka: &config.kafka,
            store,
            tables,
            deleted_links: &deleted_links,
            letters: &letters,
            recounts: &recounts,
            kept: &kept,
        };
        let outcomes: Vec<(Source, Report)> = stream::iter(sources)
            .map(|source| {
                let part = Part {
                    topic: Arc::clone(&clicks),
                    partition: source.partition,
                    offsets: source.from..source.to,
                };
                compare.source(part, source)
            })
            .buffered(SOURCES)
            .try_collect()
            .await?;
        let mut compared = Vec::new();
        for (source, found) in outcomes {
            compared.push((source.src, source.from, source.to));
            let described = found.differences.len() as u64;
            found.differences.into_iter().for_each(|difference| report.differs(difference));
            report.difference_count += found.difference_count - described;
            report.sources.push(source);
        }
        Ok(compared)
    }

    /// Returns the comparable range of each source of a partition.
    async fn extents(&self, log: &Log, sources: &Sources, partition: i32) -> anyhow::Result<Vec<Source>> {
        let topic_id = log.topic_id().await.context("cannot ask Kafka for the topic's id")?;
        if sources.last(partition).is_some_and(|source| source.topic_id != topic_id) {
            bail!(
                "topic {} is not the one that the rows of partition {partition} came from. If the former topic is \
                 lost, `processor adopt-topic` keeps the counted clicks and continues with this one",
                log.topic()
            );
        }
        let position = self.store.position_of(sources, partition).await;
        let position = position.context("cannot read the partition's position")?;
        let extent = log.extent(partition).await.context("cannot ask Kafka for the log's ends")?;
        let Some(Position { next: done, .. }) = position else {
            // Nothing of the partition is counted yet.
            let (src, behind) = (sources.of(partition), extent.end - extent.start);
            let (from, to) = (extent.start, extent.start);
            return Ok(vec![Source { partition, src, from, to, behind, ..Source::default() }]);
        };
        if extent.end < done {
            bail!(
                "partition {partition} of topic {} ends at offset {}, but everything before {done} is counted: the log \
                 was truncated. A running processor keeps the counted clicks and continues with this log",
                log.topic(),
                extent.end
            );
        }
        let of_source = |(source, own): (crate::clickhouse::sources::Source, Range<u64>)| {
            let (from, to) = (own.start.max(extent.start), own.end.min(done));
            let is_last = own.end == u64::MAX;
            let behind = if is_last { extent.end - done } else { 0 };
            let source =
                Source { partition, src: source.src, from: from.min(to), to, behind, ..Source::default() };
            // The log may hold nothing of an older source.
            (is_last || from < to).then_some(source)
        };
        let mut found: Vec<Source> = sources.of_topic(partition).into_iter().filter_map(of_source).collect();
        found.reverse();
        Ok(found)
    }

    async fn letters(&self, clicks: &str) -> anyhow::Result<Letters> {
        let kafka = &self.config.kafka;
        let topic: Arc<str> = kafka.topic(topic::DEAD_LETTERS.name).into();
        let log = Log::new(kafka, &topic, &kafka.topic(GROUP))?;
        let mut parts = Vec::new();
        for partition in 0..log.partitions().await.context("cannot ask Kafka for the dead letters")? {
            let extent = log.extent(partition).await.context("cannot ask Kafka for the dead letters")?;
            parts.push(Part { topic: Arc::clone(&topic), partition, offsets: extent.start..extent.end });
        }
        letters(kafka, parts, clicks).await
    }

    /// Returns the first days whose rows are kept.
    async fn kept(&self) -> anyhow::Result<Kept> {
        let tables = self.config.upkeep_store();
        let windows = tables.windows().await.context("cannot read the windows of plans")?;
        let today = Utc::now().date_naive();
        let of_all = windows.keys().max().map(|largest| first_kept(today, *largest));
        let kept = |(days, workspaces): (u32, Vec<Uuid>)| {
            workspaces.into_iter().map(move |workspace| (workspace, first_kept(today, days)))
        };
        Ok(Kept { of_workspaces: windows.into_iter().flat_map(kept).collect(), of_all })
    }

    async fn compare_rows(&self, compared: &[(u32, u64, u64)], report: &mut Report) -> anyhow::Result<()> {
        for doubled in self.tables.doubled_positions(compared).await? {
            report.differs(doubled);
        }
        for doubled in self.tables.doubled_clicks().await? {
            report.differs(doubled);
        }
        Ok(())
    }

    async fn compare_rollups(&self, report: &mut Report) -> anyhow::Result<()> {
        let tables = &self.tables;
        let last_closed = self.config.upkeep_store().last_closed_slice().await?;
        report.closed_until = last_closed.and_then(|slice| slice.succ_opt());
        if let Some(until) = report.closed_until {
            let slices = tables.slices(until).await?;
            report.slices = slices.len();
            for slices in group_slices(&slices) {
                for unequal in tables.unequal_slices(&slices).await? {
                    report.differs(unequal);
                }
            }
            for unequal in tables.unequal_months(until).await? {
                report.differs(unequal);
            }
        }
        // One statement reads both sides, so live clicks do not cause differences.
        report.classes = tables.totals(report.closed_until).await?;
        let unequal: Vec<Difference> = report
            .classes
            .iter()
            .filter(|(_, totals)| totals.rows != totals.counted)
            .map(|(class, totals)| {
                let detail = format!("{class}: {} raw rows, queries count {}", totals.rows, totals.counted);
                Difference::new(Kind::Total, detail)
            })
            .collect();
        unequal.into_iter().for_each(|difference| report.differs(difference));
        Ok(())
    }
}

/// Groups neighbouring slices, so that one statement compares a bounded number of rows.
fn group_slices(slices: &BTreeMap<NaiveDate, u64>) -> Vec<Vec<NaiveDate>> {
    let mut groups: Vec<Vec<NaiveDate>> = Vec::new();
    let mut rows = 0;
    for (slice, count) in slices {
        match groups.last_mut() {
            Some(group) if group.len() < SLICE_DAYS && rows + count <= SLICE_ROWS => {
                group.push(*slice);
                rows += count;
            }
            _ => {
                groups.push(vec![*slice]);
                rows = *count;
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_compared_in_groups_of_bounded_work() {
        let day = |number: u32| NaiveDate::from_yo_opt(2026, number).unwrap();
        let slices =
            BTreeMap::from([(day(1), 1), (day(2), SLICE_ROWS - 1), (day(3), 1), (day(9), 5 * SLICE_ROWS)]);
        assert_eq!(group_slices(&slices), [vec![day(1), day(2)], vec![day(3)], vec![day(9)]]);
        let many: BTreeMap<_, _> = (1..=SLICE_DAYS as u32 + 1).map(|number| (day(number), 0)).collect();
        assert_eq!(group_slices(&many).iter().map(Vec::len).collect::<Vec<_>>(), [SLICE_DAYS, 1]);
        assert!(group_slices(&BTreeMap::new()).is_empty());
    }
}
