//! `processor replay`: reads a range of the log again, and rebuilds its days.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
use clap::Args;
use schemas::time::text;
use serde::Serialize;

use super::reading::{Part, read};
use super::rebuild::{Range, Rebuild, Rebuilt};
use crate::Config;
use crate::clickhouse::Store;
use crate::clickhouse::sources::{Source, Sources};
use crate::pipeline::decode::Record;
use crate::pipeline::log::{Extent, Log};

/// Arguments of `replay`.
#[derive(Debug, Clone, Args)]
pub struct Replay {
    /// From the first record at or after this time of the broker's clock, or `earliest`.
    #[arg(long, value_name = "TIME", required_unless_present = "offsets")]
    from: Option<Start>,
    /// Up to the first record at or after this time; by default up to the last counted record.
    #[arg(long, value_name = "TIME", conflicts_with = "offsets")]
    to: Option<DateTime<Utc>>,
    /// A range of one partition, such as 3:1000-2000; may be given more than once.
    #[arg(long, value_name = "PARTITION:FROM-TO", conflicts_with = "from")]
    offsets: Vec<Offsets>,
    /// Print what would be replayed, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Where a replay starts in every partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Earliest,
    Time(DateTime<Utc>),
}

impl FromStr for Start {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        match given {
            "earliest" => Ok(Self::Earliest),
            time => time
                .parse()
                .map(Self::Time)
                .map_err(|error| format!("{error}; write a time such as 2026-11-21T08:00:00Z, or earliest")),
        }
    }
}

/// A range of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offsets {
    partition: i32,
    from: u64,
    to: u64,
}

impl FromStr for Offsets {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let range = given.split_once(':').and_then(|(partition, range)| {
            let (from, to) = range.split_once('-')?;
            Some(Self { partition: partition.parse().ok()?, from: from.parse().ok()?, to: to.parse().ok()? })
        });
        let range = range.filter(|range| range.from < range.to && range.partition >= 0);
        range.ok_or_else(|| "expected PARTITION:FROM-TO, such as 3:1000-2000".to_owned())
    }
}

/// What a replay changed, or would change in a dry run.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    dry_run: bool,
    /// The ranges that are read from the log again.
    ranges: Vec<Range>,
    /// The closed days, which are rebuilt.
    days: Vec<NaiveDate>,
    rebuilt: Vec<Rebuilt>,
    /// Days that are open or were closed less than an hour ago: their missing rows are added.
    open_days: Vec<NaiveDate>,
    /// Rows that were added to them.
    added: usize,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dry_run, ranges, days, rebuilt, open_days, added } = self;
        let offsets: u64 = ranges.iter().map(|range| range.to - range.from).sum();
        writeln!(f, "{offsets} offsets are read from the log again:")?;
        for Range { partition, from, to, .. } in ranges {
            writeln!(f, "  partition {partition}, {from} to {to}")?;
        }
        if *dry_run {
            for day in days {
                writeln!(f, "{day} would be rebuilt")?;
            }
        }
        for day in rebuilt {
            writeln!(f, "{day}")?;
        }
        if !open_days.is_empty() {
            let days: Vec<String> = open_days.iter().map(NaiveDate::to_string).collect();
            let days = days.join(", ");
            if *dry_run {
                writeln!(f, "missing clicks would be added to {days}, open or closed less than an hour ago")?;
            } else {
                writeln!(f, "{days}, open or closed less than an hour ago: added {added} missing clicks")?;
            }
        }
        writeln!(f, "{}", if *dry_run { "nothing was changed" } else { "done" })
    }
}

/// Replays a part of the log, one day after the other.
///
/// # Errors
/// When the log does not hold the range, another replay has started, or an engine fails. Finished days stay finished.
pub(super) async fn replay(config: &Config, command: &Replay) -> anyhow::Result<Outcome> {
    let planning = Planning { config, store: config.store("replay"), log: config.log()? };
    let ranges = planning.ranges(command).await?;
    let touched = planning.touched(&ranges).await?;
    let settled = config.upkeep_store().days().await.context("cannot read the closed slices")?;
    let (closed, open): (BTreeSet<NaiveDate>, BTreeSet<NaiveDate>) =
        touched.iter().copied().partition(|day| settled.are_settled(day));
    let mut outcome = Outcome {
        dry_run: command.dry_run,
        days: closed.iter().copied().collect(),
        ranges,
        rebuilt: Vec::new(),
        open_days: open.iter().copied().collect(),
        added: 0,
    };
    if command.dry_run {
        return Ok(outcome);
    }
    let rebuild = Rebuild::begin(config, planning.store.clone(), planning.log.clone()).await?;
    let done = run_replay(&planning, &rebuild, &closed, &open, &mut outcome).await;
    rebuild.end().await?;
    done.map(|()| outcome)
}

async fn run_replay(
    planning: &Planning<'_>,
    rebuild: &Rebuild<'_>,
    closed: &BTreeSet<NaiveDate>,
    open: &BTreeSet<NaiveDate>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    for day in closed {
        let ranges = planning.of_days(&outcome.ranges, *day, *day).await?;
        let rebuilt = rebuild.day(*day, &ranges, None, "replay").await;
        let rebuilt = rebuilt.with_context(|| {
            format!(
                "{day} was not rebuilt; the days before it are done. Run the replay again from {day}T00:00:00Z"
            )
        })?;
        outcome.rebuilt.push(rebuilt);
    }
    if let (Some(first), Some(last)) = (open.first(), open.last()) {
        let ranges = planning.of_days(&outcome.ranges, *first, *last).await?;
        outcome.added = rebuild
            .complete(&ranges, closed, *first)
            .await
            .context("open days may still lack clicks; the closed days are done. Run the replay again")?;
    }
    Ok(())
}

/// Finds the ranges and days of a replay.
struct Planning<'a> {
    config: &'a Config,
    store: Store,
    log: Log,
}

impl Planning<'_> {
    /// Returns the requested ranges, as far as they are counted: live processors count the rest.
    async fn ranges(&self, command: &Replay) -> anyhow::Result<Vec<Range>> {
        let Self { store, log, .. } = self;
        let sources = store.sources().await.context("cannot read the partitions' logs")?;
        let mut ranges = Vec::new();
        let partitions = log.partitions().await.context("cannot ask Kafka for the topic of clicks")?;
        if let Some(range) = command.offsets.iter().find(|range| range.partition >= partitions) {
            bail!("there is no partition {}: topic {} has {partitions}", range.partition, log.topic());
        }
        for partition in 0..partitions {
            let position = store.position_of(&sources, partition).await;
            let position = position.context("cannot read the partition's position")?;
            let extent = log.extent(partition).await.context("cannot ask Kafka for the log's ends")?;
            let done = position.map_or(0, |position| position.next);
            for (from, to) in self.requested(command, &sources, partition, extent).await? {
                let to = to.min(done).min(extent.end);
                for (Source { src, shard, .. }, own) in sources.of_topic(partition) {
                    let (from, to) = (from.max(own.start), to.min(own.end));
                    if from < to {
                        ranges.push(Range { partition, src, shard, from, to });
                    }
                }
            }
        }
        if ranges.is_empty() {
            bail!("no record of the requested range is counted yet: there is nothing to replay");
        }
        ranges.sort_unstable_by_key(|range| (range.partition, range.src, range.from));
        Ok(ranges)
    }

    /// Returns the requested ranges of a partition, without overlaps.
    async fn requested(
        &self,
        command: &Replay,
        sources: &Sources,
        partition: i32,
        extent: Extent,
    ) -> anyhow::Result<Vec<(u64, u64)>> {
        if command.from.is_some() {
            return Ok(vec![self.requested_range(command, None, sources, partition, extent).await?]);
        }
        let mut ranges = Vec::new();
        for offsets in merged(&command.offsets, partition) {
            ranges.push(self.requested_range(command, Some(offsets), sources, partition, extent).await?);
        }
        Ok(ranges)
    }

    /// Returns one requested range of a partition: these offsets, or those between the times.
    async fn requested_range(
        &self,
        command: &Replay,
        offsets: Option<Offsets>,
        sources: &Sources,
        partition: i32,
        extent: Extent,
    ) -> anyhow::Result<(u64, u64)> {
        // Offsets and times of a replaced log have no meaning in the new log.
        let was_replaced = sources.have_former(partition);
        let begins = async || self.time_of(partition, extent.start, extent.end).await;
        let at = async |time: DateTime<Utc>| self.first_at(partition, time, extent.end).await;
        let (from, is_lost) = match (command.from, offsets) {
            (_, Some(Offsets { from, .. })) => (from, from < extent.start),
            (Some(Start::Earliest) | None, None) => (extent.start, false),
            (Some(Start::Time(time)), None) => {
                let lost_records = extent.start > 0 || was_replaced;
                (at(time).await?, lost_records && begins().await?.is_none_or(|begins| time < begins))
            }
        };
        if is_lost {
            bail!(
                "the log of partition {partition} begins at offset {}, {}: earlier records are gone{}, and their rows \
                 stay unchanged. `--from earliest` starts there",
                extent.start,
                begins().await?.map_or_else(|| "and has no record".to_owned(), text),
                if was_replaced { " with the log that it replaced" } else { "" }
            );
        }
        let to = match (command.to, offsets) {
            (_, Some(Offsets { to, .. })) if was_replaced && to > extent.end => bail!(
                "the log of partition {partition} ends at offset {}: it replaced another log, whose records are \
                 gone; their rows stay unchanged",
                extent.end
            ),
            (_, Some(Offsets { to, .. })) => to,
            (Some(time), None) => at(time).await?,
            (None, None) => extent.end,
        };
        Ok((from, to))
    }

    /// Returns the offset of the first record of a partition at or after a time, or `end` if there is none.
    async fn first_at(&self, partition: i32, time: DateTime<Utc>, end: u64) -> anyhow::Result<u64> {
        let found = self.log.first_after(partition, time - TimeDelta::milliseconds(1)).await;
        Ok(found.context("cannot ask Kafka for a time")?.unwrap_or(end))
    }

    /// Returns the broker's time of the first record from an offset on.
    async fn time_of(&self, partition: i32, from: u64, end: u64) -> anyhow::Result<Option<DateTime<Utc>>> {
        let part = Part { topic: Arc::from(self.log.topic()), partition, offsets: from..end.min(from + 1) };
        let mut records = read(&self.config.kafka, part, |message| Record::of(message).broker_ts);
        let first = records.recv().await.transpose()?;
        Ok(first.and_then(|times| *times.first()?))
    }

    /// Returns the broker days of the rows and records of some ranges.
    async fn touched(&self, ranges: &[Range]) -> anyhow::Result<BTreeSet<NaiveDate>> {
        let mut touched = BTreeSet::new();
        let tables = self.config.upkeep_store();
        for Range { partition, src, from, to, .. } in ranges {
            let rows = format!("src = {src} AND koff >= {from} AND koff < {to}");
            touched.extend(tables.days_with(&rows).await.context("cannot read the raw rows")?);
            let first = self.time_of(*partition, *from, *to).await?;
            let last = self.time_of(*partition, to - 1, *to).await?;
            if let (Some(first), Some(last)) = (first, last) {
                let days = first.min(last).date_naive().iter_days();
                touched.extend(days.take_while(|day| *day <= first.max(last).date_naive()));
            }
        }
        Ok(touched)
    }

    /// Returns the parts of ranges that hold the records of some days, allowing for differing broker clocks.
    async fn of_days(
        &self,
        ranges: &[Range],
        first: NaiveDate,
        last: NaiveDate,
    ) -> anyhow::Result<Vec<Range>> {
        let midnight = |day: NaiveDate| day.and_time(NaiveTime::MIN).and_utc();
        let (begin, end) =
            (midnight(first) - MAX_CLOCK_SKEW, midnight(last) + TimeDelta::days(1) + MAX_CLOCK_SKEW);
        let mut parts = Vec::new();
        for range in ranges {
            let from = self.first_at(range.partition, begin, range.to).await?.max(range.from);
            let to = self.first_at(range.partition, end, range.to).await?.min(range.to);
            if from < to {
                parts.push(Range { from, to, ..range.clone() });
            }
        }
        Ok(parts)
    }
}

/// How far the clocks of brokers may differ. Rows of records beyond it stay unchanged.
const MAX_CLOCK_SKEW: TimeDelta = TimeDelta::minutes(10);

/// Returns the ranges of a partition in order, with overlapping and adjacent ones merged.
fn merged(offsets: &[Offsets], partition: i32) -> Vec<Offsets> {
    let mut own: Vec<Offsets> =
        offsets.iter().copied().filter(|range| range.partition == partition).collect();
    own.sort_unstable_by_key(|range| range.from);
    let mut joined: Vec<Offsets> = Vec::new();
    for range in own {
        match joined.last_mut() {
            Some(last) if range.from <= last.to => last.to = last.to.max(range.to),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_range_is_parsed() {
        assert_eq!("3:10-20".parse(), Ok(Offsets { partition: 3, from: 10, to: 20 }));
        for bad in ["", "3", "3:10", "3:20-10", "3:5-5", "-1:1-2", "a:1-2", "3:1-"] {
            assert!(bad.parse::<Offsets>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_that_meet_are_read_once() {
        let given = ["3:40-50", "3:10-20", "1:0-9", "3:15-30", "3:30-35"].map(|range| range.parse().unwrap());
        let range = |from, to| Offsets { partition: 3, from, to };
        assert_eq!(merged(&given, 3), [range(10, 35), range(40, 50)]);
        assert_eq!(merged(&given, 0), []);
    }

    #[test]
    fn a_start_is_a_time_or_earliest() {
        assert_eq!("earliest".parse(), Ok(Start::Earliest));
        assert_eq!("2026-11-21T08:00:00Z".parse(), Ok(Start::Time("2026-11-21T08:00:00Z".parse().unwrap())));
        assert!("yesterday".parse::<Start>().is_err());
    }
}
