//! `processor adopt-topic`: continues with a topic of clicks that was recreated.
//!
//! Rows are identified by their positions, so offsets of two topics must not share a source. A partition whose topic
//! has another id than the one that its rows came from gets a new source: stored rows stay counted, and clicks of the
//! new topic are counted from its start.
//!
//! An adoption is one row per partition, inserted under the epoch of the former source. The partition's owner is fenced
//! by that epoch, claims the partition again, and reads its new source; see [`crate::pipeline::ownership`]. After a
//! kill, run it again: it adopts the remaining partitions. Processors may keep running.

use std::fmt;

use anyhow::{Context as _, bail};
use clap::Args;
use schemas::row::partition_of;
use schemas::time::text;
use serde::Serialize;
use uuid::Uuid;

use crate::Config;
use crate::clickhouse::sources::{NO_LOG, Source, Sources};
use crate::clickhouse::{InsertError, Store, StoredRow};
use crate::pipeline::log::{Extent, Log};

/// Attempts to adopt a partition that a processor takes over meanwhile.
const ATTEMPTS: usize = 20;

/// Arguments of `adopt-topic`.
#[derive(Debug, Clone, Args)]
pub struct AdoptTopic {
    /// Print what would be adopted and what is lost, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// What was adopted, or would be in a dry run.
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
    /// Why the topic is another one; none when it is the one that the rows came from.
    evidence: Option<String>,
    /// The source of the new log's clicks; none when the topic no longer has the partition.
    new_src: Option<u32>,
    stored: Stored,
    /// The offsets that the log holds now; none when there is no log.
    log: Option<Held>,
}

/// The stored rows of a source.
#[derive(Debug, Serialize)]
struct Stored {
    rows: u64,
    /// The offset of the last row, and the broker's time of it.
    last_offset: Option<u64>,
    last_at: Option<String>,
    /// The reported time up to which every click of the log was counted.
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
                    "partition {partition}: the topic is the one that its rows came from; nothing changes"
                )?;
                continue;
            };
            let Stored { rows, last_offset, last_at, as_of } = stored;
            let last =
                last_offset.map_or_else(String::new, |offset| format!(", the last one of offset {offset}"));
            let at = last_at.as_ref().map_or_else(String::new, |at| format!(" at {at}"));
            writeln!(f, "partition {partition}: the topic was replaced: {evidence}")?;
            writeln!(f, "  stored: {rows} rows of source {src}{last}{at}; they stay counted")?;
            match (log, new_src) {
                (Some(Held { start, end }), Some(new)) => writeln!(
                    f,
                    "  the log now: offsets {start} to {end}; they are counted from offset {start} as source {new}"
                )?,
                _ => writeln!(f, "  the log now: none; the partition is no longer waited for")?,
            }
            let since = as_of.as_ref().or(last_at.as_ref());
            let since = since.map_or_else(String::new, |since| format!(" after {since}"));
            writeln!(
                f,
                "  lost: clicks that the former log received{since} and that were not counted. Their number is \
                 unknown, and the former log can no longer be replayed or audited"
            )?;
        }
        writeln!(f, "{}", if self.dry_run { "nothing was changed" } else { "done" })
    }
}

/// Adopts the logs of partitions that are not those which their rows came from.
///
/// # Errors
/// When every log is the one that its rows came from, or an engine fails.
pub(super) async fn adopt_topic(config: &Config, command: &AdoptTopic) -> anyhow::Result<Outcome> {
    let adoption = Adoption::new(config).await?;
    let mut partitions = Vec::new();
    for partition in adoption.partitions().await? {
        partitions.push(adoption.look(partition).await?);
    }
    if partitions.iter().all(|partition| partition.evidence.is_none()) {
        bail!(
            "there is nothing to adopt: topic {} is the one that the rows of each of its {} partitions came from",
            adoption.log.topic(),
            partitions.len()
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
    log: Log,
    /// How many partitions the topic has, and its id.
    count: i32,
    topic_id: Uuid,
}

impl Adoption {
    async fn new(config: &Config) -> anyhow::Result<Self> {
        let log = config.log()?;
        let store = config.store("adopt-topic");
        let count = log.partitions().await.context("cannot ask Kafka for the topic of clicks")?;
        let topic_id = log.topic_id().await.context("cannot ask Kafka for the topic's id")?;
        Ok(Self { store, log, count, topic_id })
    }

    /// Returns the topic's partitions, and former ones whose clicks were counted.
    async fn partitions(&self) -> anyhow::Result<Vec<i32>> {
        let sources = self.sources().await?;
        let counted = self.store.progress().await.context("cannot read the progress")?.into_keys();
        let gone = counted.filter(|src| sources.are_current(*src)).map(|src| i32::from(partition_of(src)));
        let gone = gone.filter(|partition| *partition >= self.count);
        let is_former =
            |partition: &i32| sources.last(*partition).is_some_and(|log| log.topic_id != self.topic_id);
        Ok((0..self.count).chain(gone.filter(is_former)).collect())
    }

    async fn look(&self, partition: i32) -> anyhow::Result<Partition> {
        let Self { store, log, count, topic_id } = self;
        let sources = self.sources().await?;
        let src = sources.of(partition);
        let position = store.position_of(&sources, partition).await;
        let last_row = position.context("cannot read the last row")?.and_then(|position| position.last_row);
        let extent = if partition < *count {
            Some(log.extent(partition).await.context("cannot ask Kafka for the log's ends")?)
        } else {
            None
        };
        let another = sources.last(partition).filter(|known| known.topic_id != *topic_id);
        let evidence = match (extent, another) {
            (None, _) => Some(format!("the topic has {count} partitions")),
            (Some(_), Some(known)) => {
                Some(format!("Kafka's id of the topic is {topic_id}, and was {}", known.topic_id))
            }
            (Some(_), None) => None,
        };
        let next = another.map(|known| self.next(known)).transpose()?;
        let progress = store.progress().await.context("cannot read the progress")?;
        let rows = store.rows(src).await.context("cannot count the rows")?;
        Ok(Partition {
            partition,
            src,
            new_src: next.filter(|_| extent.is_some()).map(|next| next.src),
            evidence,
            stored: Stored {
                rows,
                last_offset: last_row.as_ref().map(|row| row.koff),
                last_at: last_row.as_ref().and_then(StoredRow::broker_ts).map(text),
                as_of: progress.get(&src).copied().map(text),
            },
            log: extent.map(|Extent { start, end }| Held { start, end }),
        })
    }

    /// Returns the source that replaces another one.
    fn next(&self, known: Source) -> anyhow::Result<Source> {
        let src = known.next_src();
        let partition = known.partition();
        let src = src.with_context(|| format!("partition {partition} has had the maximum number of logs"))?;
        let first_offset = if partition < self.count { 0 } else { NO_LOG };
        Ok(Source { src, topic_id: self.topic_id, first_offset, ..known })
    }

    /// Gives a partition its next source, if its topic is another one.
    async fn adopt(&self, found: &Partition) -> anyhow::Result<()> {
        let Partition { partition, evidence: Some(evidence), .. } = found else { return Ok(()) };
        for _ in 0..ATTEMPTS {
            // Another command may have adopted it meanwhile.
            let known = self.sources().await?.last(*partition);
            let Some(known) = known.filter(|known| known.topic_id != self.topic_id) else { return Ok(()) };
            let next = self.next(known)?;
            let fenced = self.store.fence(known.src).await.context("cannot fence the source")?;
            // Fenced: no more rows are inserted. Check that the source is still the last one.
            if self.sources().await?.last(*partition) != Some(known) {
                continue;
            }
            if self.log.topic_id().await.context("cannot ask Kafka for the topic's id")? != self.topic_id {
                bail!("the topic was recreated meanwhile; run the command again, first with --dry-run");
            }
            match self.store.begin(fenced, next, evidence).await {
                Ok(()) => {
                    let (src, to) = (known.src, next.src);
                    tracing::info!(partition, src, to, "partition {partition} continues as source {to}");
                    return Ok(());
                }
                Err(InsertError::Fenced) => {
                    tracing::info!(
                        partition,
                        "a processor took over partition {partition} meanwhile, trying again"
                    );
                }
                // The next attempt reads whether it was done.
                Err(InsertError::InDoubt(error)) => {
                    tracing::warn!(partition, "adopting partition {partition} failed, trying again: {error}");
                }
            }
        }
        bail!("processors took over partition {partition} during each of {ATTEMPTS} attempts; run it again")
    }

    async fn sources(&self) -> anyhow::Result<Sources> {
        self.store.sources().await.context("cannot read the partitions' logs")
    }
}
