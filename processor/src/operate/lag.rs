//! `processor lag`: how far each partition of the topic of clicks is counted.

use std::fmt;

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use schemas::time::text;
use serde::Serialize;

use crate::Config;

/// How far the clicks of all partitions are counted.
#[derive(Debug, Serialize)]
pub struct Lags {
    /// Records that are not counted yet, of all partitions.
    pub offsets: u64,
    /// The longest lag of a partition in seconds; none while a partition has never been counted.
    pub seconds: Option<f64>,
    /// Each partition.
    pub partitions: Vec<Lag>,
}

/// How far the clicks of one partition are counted.
#[derive(Debug, Serialize)]
pub struct Lag {
    /// The partition.
    pub partition: i32,
    /// The source's number in the rows.
    pub src: u32,
    /// The first offset that the log holds.
    pub start: u64,
    /// The offset that the next record will get.
    pub end: u64,
    /// The offset that the consumer group has committed.
    pub committed: Option<u64>,
    /// The offset of the last row.
    pub last_row: Option<u64>,
    /// Records that are not counted yet.
    pub offsets: u64,
    /// Seconds since the time up to which every click is counted.
    pub seconds: Option<f64>,
    /// Up to when every click is counted, by the broker's clock.
    pub as_of: Option<String>,
}

/// Measures the lag of every partition.
///
/// # Errors
/// When Kafka or ClickHouse does not answer.
pub async fn lag(config: &Config) -> anyhow::Result<Lags> {
    let log = config.log()?;
    let store = config.store("lag");
    let progress = store.progress().await.context("cannot read the progress")?;
    let sources = store.sources().await.context("cannot read the partitions' logs")?;
    let mut partitions = Vec::new();
    for partition in 0..log.partitions().await.context("cannot ask Kafka for the topic of clicks")? {
        let src = sources.of(partition);
        let committed = log.committed(partition).await.context("cannot ask Kafka for committed offsets")?;
        let position = store.position_of(&sources, partition).await;
        let position = position.context("cannot read the partition's position")?;
        let extent = log.extent(partition).await.context("cannot ask Kafka for the log's ends")?;
        let done = position.as_ref().map_or(extent.start, |position| position.next);
        let last_row = position.and_then(|position| position.last_row).map(|row| row.koff);
        let as_of = progress.get(&src).copied();
        partitions.push(Lag {
            partition,
            src,
            start: extent.start,
            end: extent.end,
            committed,
            last_row,
            offsets: extent.end.saturating_sub(done),
            seconds: as_of.map(seconds_since),
            as_of: as_of.map(text),
        });
    }
    let seconds: Option<Vec<f64>> = partitions.iter().map(|lag| lag.seconds).collect();
    Ok(Lags {
        offsets: partitions.iter().map(|lag| lag.offsets).sum(),
        seconds: seconds.and_then(|seconds| seconds.into_iter().reduce(f64::max)),
        partitions,
    })
}

fn seconds_since(time: DateTime<Utc>) -> f64 {
    // A broker's clock may be a little ahead of this one.
    let since = (Utc::now() - time).max(TimeDelta::zero());
    since.num_milliseconds() as f64 / 1_000.0
}

impl fmt::Display for Lags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "partition        start          end    committed     last row          lag   counted until"
        )?;
        let or_dash = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        for lag in &self.partitions {
            writeln!(
                f,
                "{:>9} {:>12} {:>12} {:>12} {:>12} {:>12}   {}",
                lag.partition,
                lag.start,
                lag.end,
                or_dash(lag.committed),
                or_dash(lag.last_row),
                lag.offsets,
                lag.as_of.as_deref().unwrap_or("-")
            )?;
        }
        match self.seconds {
            Some(seconds) => writeln!(f, "{} records, {seconds:.1} s behind", self.offsets),
            None => writeln!(f, "{} records behind; not every partition has been counted yet", self.offsets),
        }
    }
}
