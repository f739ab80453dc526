//! `processor replay`: reads a range of the log again, into tables that then take the place of the current ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use clap::Args;
use schemas::clickhouse::Generation;
use schemas::time::text;
use serde::Serialize;
use service::clickhouse::client;

use super::reading::{Part, read};
use super::rebuild::plan::{Plan, Range};
use super::rebuild::{Rebuild, RebuildError};
use crate::Config;
use crate::decode::Record;
use crate::log::Extent;
use crate::sources::{Source, Sources};
use crate::upkeep;

/// Which part of the log is replayed.
#[derive(Debug, Clone, Args)]
pub struct Replay {
    /// From the first record at or after this time of the broker's clock, or `earliest`.
    #[arg(long, value_name = "TIME", required_unless_present_any = ["offsets", "resume"])]
    from: Option<Start>,
    /// To before the first record at or after this time; else to what is counted now.
    #[arg(long, value_name = "TIME", conflicts_with = "offsets")]
    to: Option<DateTime<Utc>>,
    /// A range of one partition, such as 3:1000-2000; may be given more than once.
    #[arg(long, value_name = "PARTITION:FROM-TO", conflicts_with = "from")]
    offsets: Vec<Offsets>,
    /// Go on with a replay that was broken off.
    #[arg(long, conflicts_with_all = ["from", "to", "offsets"])]
    resume: bool,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Where a replay begins in every partition.
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

/// What was done, or would be.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    dry_run: bool,
    plan: Plan,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { generation, of, .. } = self.plan;
        self.plan.fmt(f)?;
        if self.dry_run {
            return writeln!(f, "nothing was done");
        }
        writeln!(f, "done: generation {generation} is current")?;
        writeln!(f, "`processor drop-generation {of}` removes the former tables")
    }
}

/// Replays, or goes on with what was broken off.
///
/// # Errors
/// When the log does not hold the range, another replay is at work or was broken off, or an engine fails.
pub(super) async fn replay(config: &Config, command: &Replay) -> anyhow::Result<Outcome> {
    let rebuild = Rebuild::new(config)?;
    let mut attempt = 1;
    loop {
        let plan = match rebuild.unfinished(command.resume).await? {
            Some(plan) => plan,
            None => make_plan(config, &rebuild, command).await?,
        };
        if command.dry_run {
            return Ok(Outcome { dry_run: true, plan });
        }
        let done = if command.resume { rebuild.resume(plan).await } else { rebuild.begin(plan).await };
        match done {
            // Another one ended between the plan and its first step; what is to be done now, a new plan says.
            Err(RebuildError::Changed) if attempt < ATTEMPTS => attempt += 1,
            done => return Ok(Outcome { dry_run: false, plan: done? }),
        }
    }
}

/// How often a plan is made, should others come in between.
const ATTEMPTS: usize = 5;

/// What was removed.
#[derive(Debug, Serialize)]
pub(super) struct Dropped {
    generation: u32,
    existed: bool,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = if self.existed { "removed" } else { "there were no" };
        writeln!(f, "{done} tables of generation {}", self.generation)
    }
}

/// Removes the tables of a generation.
///
/// # Errors
/// When it is the current one, a replay is at work, or ClickHouse does not do it.
pub(super) async fn drop_generation(config: &Config, generation: Generation) -> anyhow::Result<Dropped> {
    let rebuild = Rebuild::new(config)?;
    let current = rebuild.store().current_generation().await.context("cannot read the current generation")?;
    if generation == current {
        return Err(RebuildError::IsCurrent(generation).into());
    }
    if let Some(written) = rebuild.broken_off().await?
        && written.plan.of() == generation
    {
        // It may have switched already, and then takes the last rows from these tables.
        bail!(
            "a replay that was broken off still needs generation {generation}: `processor replay --resume` first"
        );
    }
    if let Some(seconds) =
        rebuild.store().still_read(generation).await.context("cannot read the generations")?
    {
        bail!(
            "queries that began before the last switch may still read generation {generation}: wait {seconds:.0} s"
        );
    }
    Ok(Dropped { generation: generation.0, existed: rebuild.remove(generation).await? })
}

async fn make_plan(config: &Config, rebuild: &Rebuild<'_>, command: &Replay) -> anyhow::Result<Plan> {
    let (log, store) = (rebuild.log(), rebuild.store());
    let generation = store.current_generation().await.context("cannot read the current generation")?;
    // Before what is done: all rows of a slice that was closed by now are below that, so that they are copied before
    // its rollup is computed. A slice that closes afterwards closes anew after the switch.
    let tables = upkeep::Tables::new(client(&config.clickhouse));
    let closed = tables.last_closed_slice(generation).await.context("cannot read the closed slices")?;
    let sources = store.sources().await.context("cannot read the partitions' logs")?;
    let (mut ranges, mut live) = (Vec::new(), BTreeMap::new());
    let partitions = log.partitions().await.context("cannot ask Kafka for the topic of clicks")?;
    if let Some(range) = command.offsets.iter().find(|range| range.partition >= partitions) {
        bail!("there is no partition {}: topic {} has {partitions}", range.partition, log.topic());
    }
    for partition in 0..partitions {
        let position = store.position_of(generation, &sources, partition).await;
        let position = position.context("cannot read how far the partition is")?;
        let extent = log.extent(partition).await.context("cannot ask Kafka for the log's ends")?;
        // What is not done yet is for the live processors to do.
        let done = position.map_or(0, |position| position.next);
        live.insert(sources.of(partition), done);
        for (from, to) in asked(config, rebuild, command, &sources, partition, extent).await? {
            let to = to.min(done).min(extent.end);
            for (Source { src, .. }, own) in sources.of_topic(partition) {
                let (from, to) = (from.max(own.start), to.min(own.end));
                if from < to {
                    ranges.push(Range { partition, src, from, to });
                }
            }
        }
    }
    if ranges.is_empty() {
        bail!("nothing of what is asked for is counted: there is nothing to replay");
    }
    let touched = touched(config, rebuild, generation, &ranges).await?;
    let days = rebuild.days(generation, "1").await?;
    let closed_until = closed.and_then(|day| day.succ_opt());
    let next = rebuild.next_generation().await?;
    Ok(Plan::new(next, generation, ranges, live, &days, &touched, closed_until))
}

/// Returns the ranges of a partition, apart from each other, that are asked for.
async fn asked(
    config: &Config,
    rebuild: &Rebuild<'_>,
    command: &Replay,
    sources: &Sources,
    partition: i32,
    extent: Extent,
) -> anyhow::Result<Vec<(u64, u64)>> {
    if command.from.is_some() {
        return Ok(vec![asked_one(config, rebuild, command, None, sources, partition, extent).await?]);
    }
    let mut ranges = Vec::new();
    for offsets in joined(&command.offsets, partition) {
        let offsets = Some(offsets);
        ranges.push(asked_one(config, rebuild, command, offsets, sources, partition, extent).await?);
    }
    Ok(ranges)
}

/// Returns the ranges of a partition in their order, those that meet as one.
fn joined(offsets: &[Offsets], partition: i32) -> Vec<Offsets> {
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

/// Returns one range of a partition that is asked for: these offsets, or what is between the times.
async fn asked_one(
    config: &Config,
    rebuild: &Rebuild<'_>,
    command: &Replay,
    offsets: Option<Offsets>,
    sources: &Sources,
    partition: i32,
    extent: Extent,
) -> anyhow::Result<(u64, u64)> {
    let log = rebuild.log();
    // Offsets and times of a log that was replaced mean nothing in the one that took its place.
    let had_another = sources.have_former(partition);
    let at = async |time: DateTime<Utc>| {
        let found = log.first_after(partition, time - TimeDelta::milliseconds(1)).await;
        Ok::<_, anyhow::Error>(found.context("cannot ask Kafka for a time")?.unwrap_or(extent.end))
    };
    let (from, is_lost) = match (command.from, offsets) {
        (_, Some(Offsets { from, .. })) => (from, from < extent.start),
        (Some(Start::Earliest) | None, None) => (extent.start, false),
        (Some(Start::Time(time)), None) => {
            let begins = first_time(config, rebuild, partition, extent).await?;
            let was_cut = extent.start > 0 || had_another;
            (at(time).await?, was_cut && begins.is_none_or(|begins| time < begins))
        }
    };
    if is_lost {
        let begins = first_time(config, rebuild, partition, extent).await?;
        bail!(
            "the log of partition {partition} begins at offset {}, {}: what is before is gone from it{}, and stays as \
             it is in the tables. `--from earliest` begins there",
            extent.start,
            begins.map_or_else(|| "and has no record".to_owned(), text),
            if had_another { " with the log that it took the place of" } else { "" }
        );
    }
    let to = match (command.to, offsets) {
        (_, Some(Offsets { to, .. })) if had_another && to > extent.end => bail!(
            "the log of partition {partition} ends at offset {}: it took the place of another one, whose offsets \
             cannot be read any more; what was counted of them stays as it is in the tables",
            extent.end
        ),
        (_, Some(Offsets { to, .. })) => to,
        (Some(time), None) => at(time).await?,
        (None, None) => extent.end,
    };
    Ok((from, to))
}

async fn first_time(
    config: &Config,
    rebuild: &Rebuild<'_>,
    partition: i32,
    extent: Extent,
) -> anyhow::Result<Option<DateTime<Utc>>> {
    time_of(config, rebuild, partition, extent.start, extent.end).await
}

/// Returns the broker's time of the first record from an offset on.
async fn time_of(
    config: &Config,
    rebuild: &Rebuild<'_>,
    partition: i32,
    from: u64,
    end: u64,
) -> anyhow::Result<Option<DateTime<Utc>>> {
    let part = Part { topic: Arc::from(rebuild.log().topic()), partition, offsets: from..end.min(from + 1) };
    let mut records = read(&config.kafka, part, |message| Record::of(message).broker_ts);
    let first = records.recv().await.transpose()?;
    Ok(first.and_then(|times| *times.first()?))
}

/// Returns the broker's days that ranges have rows or records of.
async fn touched(
    config: &Config,
    rebuild: &Rebuild<'_>,
    generation: Generation,
    ranges: &[Range],
) -> anyhow::Result<BTreeSet<NaiveDate>> {
    let mut touched = BTreeSet::new();
    for Range { partition, src, from, to } in ranges {
        let rows = format!("src = {src} AND koff >= {from} AND koff < {to}");
        touched.extend(rebuild.days(generation, &rows).await?);
        let first = time_of(config, rebuild, *partition, *from, *to).await?;
        let last = time_of(config, rebuild, *partition, to - 1, *to).await?;
        // Broker time does not run backwards within a partition, or only a little, around the ends.
        if let (Some(first), Some(last)) = (first, last) {
            let (first, last) = (first.min(last) - SKEW, first.max(last) + SKEW);
            touched.extend(first.date_naive().iter_days().take_while(|day| *day <= last.date_naive()));
        }
    }
    Ok(touched)
}

/// How far the clocks of brokers may be apart.
const SKEW: TimeDelta = TimeDelta::seconds(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_a_partition_is_read() {
        assert_eq!("3:10-20".parse(), Ok(Offsets { partition: 3, from: 10, to: 20 }));
        for bad in ["", "3", "3:10", "3:20-10", "3:5-5", "-1:1-2", "a:1-2", "3:1-"] {
            assert!(bad.parse::<Offsets>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_that_meet_are_read_once() {
        let given = ["3:40-50", "3:10-20", "1:0-9", "3:15-30", "3:30-35"].map(|range| range.parse().unwrap());
        let range = |from, to| Offsets { partition: 3, from, to };
        assert_eq!(joined(&given, 3), [range(10, 35), range(40, 50)]);
        assert_eq!(joined(&given, 0), []);
    }

    #[test]
    fn a_beginning_is_a_time_or_the_earliest() {
        assert_eq!("earliest".parse(), Ok(Start::Earliest));
        assert_eq!("2026-11-21T08:00:00Z".parse(), Ok(Start::Time("2026-11-21T08:00:00Z".parse().unwrap())));
        assert!("yesterday".parse::<Start>().is_err());
    }
}
