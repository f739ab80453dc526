//! `processor adopt-topic`: goes on with a topic of clicks that was wiped or replaced.
//!
//! Rows are told apart by their positions, so offsets of two logs must not meet in one source. A partition whose log is
//! not the one that its rows came from gets the next generation of the topic, and with it a source of its own: what is
//! stored stays counted, and clicks of the new log are counted from its start.
//!
//! One row says so, and it goes in under the epoch of the source that it ends, as the inserts of that source do. Whoever
//! had the partition until then is refused by that epoch, takes the partition again, and reads which source it has now;
//! see [`crate::ownership`]. So there is no half of an adoption: killed anywhere, it is done for some partitions and not
//! for others, and doing it again does the rest. What the group has committed for the former log counts for nothing from
//! then on, see [`crate::commit`]: nobody has to stop for it.

use std::fmt;

use anyhow::{Context as _, bail};
use chrono::{DateTime, Utc};
use clap::Args;
use schemas::clickhouse::Generation;
use schemas::row::{UPKEEP, partition_of, source, topic_of};
use schemas::time::text;
use schemas::topic;
use serde::Serialize;
use service::clickhouse::client;

use super::rebuild::{Rebuild, RebuildError};
use crate::Config;
use crate::log::{Extent, Log};
use crate::ownership::evidence_of_another_log;
use crate::store::{InsertError, LastRow, Store};
use crate::upkeep::Tables;

/// How often a source is fenced anew because a processor has taken it back in between.
const ATTEMPTS: usize = 20;

/// What is adopted: every partition whose log is another one.
#[derive(Debug, Clone, Args)]
pub struct AdoptTopic {
    /// Say what would be done and what is lost, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// What was found, and done.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    dry_run: bool,
    partitions: Vec<Partition>,
}

/// One partition.
#[derive(Debug, Serialize)]
struct Partition {
    partition: i32,
    /// The source of the rows that are stored.
    src: u32,
    /// What shows that the log is another one; none when it is the one that the rows came from.
    evidence: Option<String>,
    /// The source of the clicks of the new log; none when the topic has no such partition any more.
    new_src: Option<u32>,
    stored: Stored,
    /// What the log holds now; none when there is none.
    log: Option<Held>,
}

/// What is stored of a source.
#[derive(Debug, Serialize)]
struct Stored {
    rows: u64,
    /// The offset of the last row, and the broker's time of it.
    last_offset: Option<u64>,
    last_at: Option<String>,
    /// Up to when every click of the log was counted, as far as processors have said so.
    as_of: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Held {
    start: u64,
    end: u64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Partition { partition, src, evidence, new_src, stored, log } in &self.partitions {
            let Some(evidence) = evidence else {
                writeln!(
                    f,
                    "partition {partition}: its log is the one that its rows came from; nothing changes"
                )?;
                continue;
            };
            let Stored { rows, last_offset, last_at, as_of } = stored;
            let last =
                last_offset.map_or_else(String::new, |offset| format!(", the last one of offset {offset}"));
            let at = last_at.as_ref().map_or_else(String::new, |at| format!(" at {at}"));
            writeln!(f, "partition {partition}: its log is another one: {evidence}")?;
            writeln!(f, "  stored: {rows} rows of source {src}{last}{at}; they stay counted")?;
            match (log, new_src) {
                (Some(Held { start, end }), Some(new)) => writeln!(
                    f,
                    "  the log now: offsets {start} to {end}; they are counted from {start} on, as source {new}"
                )?,
                _ => writeln!(f, "  the log now: none; nothing waits for it any more")?,
            }
            let since = as_of.as_ref().or(last_at.as_ref());
            let since = since.map_or_else(String::new, |since| format!(" after {since}"));
            writeln!(
                f,
                "  lost for ever: what the former log took{since} and nobody counted. How many clicks that is cannot be \
                 known, and nothing of that log can be replayed or compared any more"
            )?;
        }
        writeln!(f, "{}", if self.dry_run { "nothing was done" } else { "done" })
    }
}

/// Adopts the logs of partitions that are not those which their rows came from.
///
/// # Errors
/// When every log is the one that its rows came from, a replay is not done, or an engine fails.
pub(super) async fn adopt_topic(config: &Config, command: &AdoptTopic) -> anyhow::Result<Outcome> {
    match Rebuild::new(config)?.broken_off().await {
        Ok(None) => {}
        Ok(Some(written)) => bail!(
            "generation {} of tables was broken off: first `processor replay --resume`, or `processor drop-generation \
             {}` if it needs the log that is gone",
            written.plan.generation(),
            written.plan.generation()
        ),
        Err(error @ RebuildError::AtWork(_)) => return Err(error.into()),
        Err(error) => return Err(error).context("cannot read how far the last replay is"),
    }
    let adoption = Adoption::new(config).await?;
    let mut partitions = Vec::new();
    for partition in adoption.partitions().await? {
        partitions.push(adoption.look(partition).await?);
    }
    if partitions.iter().all(|partition| partition.evidence.is_none()) {
        bail!(
            "there is nothing to adopt: the log of each of the {} partitions of topic {} is the one that its rows \
             came from, or has none yet",
            partitions.len(),
            adoption.log.topic()
        );
    }
    if !command.dry_run {
        for partition in &partitions {
            adoption.adopt(partition).await?;
        }
    }
    Ok(Outcome { dry_run: command.dry_run, partitions })
}

struct Adoption {
    store: Store,
    tables: Tables,
    log: Log,
    generation: Generation,
    /// How many partitions the topic has.
    count: i32,
}

impl Adoption {
    async fn new(config: &Config) -> anyhow::Result<Self> {
        let kafka = &config.kafka;
        let log = Log::new(kafka, &kafka.topic(topic::CLICKS.name), &kafka.topic(config.group))?;
        let store = Store::new(client(&config.clickhouse), format!("adopt-topic {}", std::process::id()));
        let generation = store.current_generation().await.context("cannot read the current generation")?;
        let count = log.partitions().await.context("cannot ask Kafka for the topic of clicks")?;
        if count == 0 {
            bail!("there is no topic {}: `api migrate` makes it", log.topic());
        }
        Ok(Self { store, tables: Tables::new(client(&config.clickhouse)), log, generation, count })
    }

    /// Returns the partitions that the topic has, and those that it had when somebody counted their clicks.
    async fn partitions(&self) -> anyhow::Result<Vec<i32>> {
        let sources = self.sources().await?;
        let counted = self.tables.progress().await.context("cannot read the progress")?.into_keys();
        let gone = counted.filter(|src| sources.are_current(*src)).map(|src| i32::from(partition_of(src)));
        Ok((0..self.count).chain(gone.filter(|partition| *partition >= self.count)).collect())
    }

    async fn look(&self, partition: i32) -> anyhow::Result<Partition> {
        let Self { store, tables, log, generation, count } = self;
        let src = self.sources().await?.of(partition);
        let last_row = store.last_row(*generation, src, 0).await.context("cannot read the last row")?;
        let extent = if partition < *count {
            Some(log.extent(partition).await.context("cannot ask Kafka for the log's ends")?)
        } else {
            None
        };
        let evidence = match extent {
            Some(extent) => self.evidence(partition, src, last_row, extent).await?,
            None => Some(format!("the topic has {count} partitions")),
        };
        let progress = tables.progress().await.context("cannot read the progress")?;
        let rows = store.rows(*generation, src).await.context("cannot count the rows")?;
        let next = source(topic_of(src) + 1, partition_of(src));
        // The last generations are the sources of other writers.
        if topic_of(next) == topic_of(UPKEEP) {
            bail!("partition {partition} has had as many logs as can be told apart");
        }
        Ok(Partition {
            partition,
            src,
            new_src: evidence.as_ref().and(extent).map(|_| next),
            evidence,
            stored: Stored {
                rows,
                last_offset: last_row.map(|row| row.koff),
                last_at: last_row.map(|row| text(row.broker_ts)),
                as_of: progress.get(&src).copied().map(text),
            },
            log: extent.map(|Extent { start, end }| Held { start, end }),
        })
    }

    /// Returns what shows that a log is not the one that rows came from: what a processor goes by, too.
    async fn evidence(
        &self,
        partition: i32,
        src: u32,
        last_row: Option<LastRow>,
        extent: Extent,
    ) -> anyhow::Result<Option<String>> {
        let committed =
            self.log.committed(src).await.context("cannot ask Kafka for committed offsets")?.unwrap_or(0);
        let evidence = evidence_of_another_log(&self.log, partition, committed, last_row, extent).await;
        evidence.context("cannot compare the log with the last row")
    }

    /// Gives a partition its next source, if its log is another one.
    async fn adopt(&self, found: &Partition) -> anyhow::Result<()> {
        let Partition { partition, src, evidence: Some(evidence), .. } = found else { return Ok(()) };
        let to = source(topic_of(*src) + 1, partition_of(*src));
        for _ in 0..ATTEMPTS {
            let fenced = self.store.fence(*src).await.context("cannot fence the source")?;
            // Only now nothing is stored any more: another one may have adopted it, or the former log may be back.
            let now = self.look(*partition).await?;
            if now.src != *src {
                return Ok(());
            }
            if now.evidence.is_none() {
                bail!(
                    "partition {partition} has the log again that its rows came from; look again what is to be done"
                );
            }
            if let (Some(new), Some(as_of)) = (now.new_src, self.as_of(*src).await?) {
                // What is said of the former log holds for the new one, which has nothing older. From here on slices
                // and queries wait for the new one.
                self.store.write_progress(&[(new, as_of)]).await.context("cannot write the progress")?;
            }
            match self.store.adopt(fenced, to, evidence).await {
                Ok(()) => {
                    tracing::info!(partition, src, to, "partition {partition} has source {to} from now on");
                    return Ok(());
                }
                Err(InsertError::Fenced) => {
                    tracing::info!(partition, "a processor took it meanwhile, trying again");
                }
                // Whether it was done, the next look tells.
                Err(InsertError::Doubtful(error)) => tracing::warn!(partition, "trying again: {error}"),
            }
        }
        bail!("processors took partition {partition} at each of {ATTEMPTS} attempts; run it again")
    }

    async fn as_of(&self, src: u32) -> anyhow::Result<Option<DateTime<Utc>>> {
        Ok(self.tables.progress().await.context("cannot read the progress")?.get(&src).copied())
    }

    async fn sources(&self) -> anyhow::Result<crate::sources::Sources> {
        self.store.sources().await.context("cannot read the topic's generations")
    }
}
