//! `processor release-source`: continues a source whose last rows were lost together with a replica of ClickHouse.
//!
//! On replicas each row can be followed by one insert only. When the insert that followed the last remaining row is
//! lost, its place stays taken, and no processor can continue. A new source at the same position has a place of its
//! own, and the log has the lost clicks.

use std::fmt;

use anyhow::{Context as _, bail};
use clap::Args;
use schemas::row::{UPKEEP, partition_of};
use serde::Serialize;

use crate::Config;
use crate::clickhouse::InsertError;
use crate::clickhouse::sources::Source;

/// Attempts while a processor takes the partition over.
const ATTEMPTS: usize = 20;

/// Why a source cannot be released while a replica lacks rows.
const AWAY: &str = "a replica waits for rows of another one. If that one is away, start it; if it is lost for ever, \
                    run `api migrate --replace-replica`, and this command again after a minute";

/// Arguments of `release-source`.
#[derive(Debug, Clone, Args)]
pub struct ReleaseSource {
    /// The source, as the processor's log names it.
    #[arg(long, value_name = "NUMBER")]
    src: u32,
    /// Print the answer as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// How a partition continues.
#[derive(Debug, Serialize)]
pub(super) struct Released {
    partition: i32,
    src: u32,
    new_src: u32,
    /// The offset from which clicks are counted under the new source.
    first_offset: u64,
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partition, src, new_src, first_offset } = self;
        writeln!(
            f,
            "partition {partition} continues at offset {first_offset} as source {new_src}; \
             the rows of source {src} stay counted"
        )
    }
}

/// Gives the partition of a source its next source, which begins where the stored rows end.
///
/// # Errors
/// When the source is not the present one of its partition, a replica that is away may still have its rows, or
/// ClickHouse fails.
pub(super) async fn release_source(config: &Config, command: &ReleaseSource) -> anyhow::Result<Released> {
    let (store, src) = (config.store("release-source").forgetting_what_is_lost(), command.src);
    let (log, partition) = (config.log()?, i32::from(partition_of(src)));
    // An epoch of upkeep may be lost as well. The owner of upkeep raises it again.
    store.fence_on_all(UPKEEP).await.context(AWAY)?;
    for _ in 0..ATTEMPTS {
        // No insert after the position that is read below.
        let token = store.fence_on_all(src).await.context(AWAY)?;
        let sources = store.sources().await.context("cannot read the sources")?;
        let present = sources.of(partition);
        if present != src {
            bail!("source {src} is not the present one of partition {partition}, which is {present}");
        }
        let (next, reason) = match sources.last(partition) {
            Some(known) => {
                let position = store.position(known).await.context("cannot read the position")?;
                let Some(next) = known.next_src() else {
                    bail!("partition {partition} has had the maximum number of sources");
                };
                let next = Source { src: next, first_offset: position.next, ..known };
                (next, "released: rows were lost with a replica")
            }
            None => {
                let topic_id = log.topic_id().await.context("cannot ask Kafka for the topic's id")?;
                let extent = log.extent(partition).await.context("cannot ask Kafka for the log's ends")?;
                let shard = store.shard_of_new(partition).await.context("cannot choose a shard")?;
                let first = Source { src, topic_id, first_offset: extent.start, shard };
                (first, "released: its beginning was lost with a replica")
            }
        };
        match store.begin(token, next, reason).await {
            // Its rows may be lost as well.
            Ok(()) if next.src == src => {}
            Ok(()) => {
                let Source { src: new_src, first_offset, .. } = next;
                return Ok(Released { partition, src, new_src, first_offset });
            }
            Err(InsertError::Fenced) => tracing::info!("a processor took the partition over, trying again"),
            Err(InsertError::InDoubt(error)) => {
                tracing::warn!("cannot begin the source, trying again: {error}");
            }
        }
    }
    bail!("processors took partition {partition} over during each of {ATTEMPTS} attempts; run it again")
}
