//! The replica that queries read.
//!
//! A query must not count less than an earlier one. So it counts what a state promises, which one task reads each
//! second for all queries: the closed slices, and the raw rows before `as_of`. It reads a replica that had the rows of
//! all replicas after that state was read, and a second one should have them too before the state is used. When the
//! first one fails, the second one is read; if it lacks later rows that only the failed one has, `as_of` stays where it
//! is.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clickhouse::error::Result;
use futures_util::future::join_all;
use schemas::clickhouse::COUNTED;
use service::Shutdown;
use service::clickhouse::Clickhouse;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::pieces::Range;
use super::recent::{LOG, Recent, SOURCE, StateRow};
use super::snapshot::{EVERYONES, Snapshot};
use crate::app::App;

/// How often the state is read.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a replica may take until the next one is tried.
const LIMIT: Duration = Duration::from_secs(2);

/// How long a state waits until another replica has its rows too.
const UNSHARED: Duration = Duration::from_secs(5);

/// A state, the replica that it was read from, and the replicas that have its rows.
struct State {
    replica: usize,
    asked_at: Instant,
    rows: Arc<[StateRow]>,
    conversions: Arc<[Range]>,
    complete: Complete,
}

/// Replicas that had all rows, each with the blocks that it had then: replicas merge over numbers of blocks without
/// rows at different times, so their blocks are compared with their own. Another one is complete with the blocks of any
/// of them.
type Complete = BTreeMap<usize, Blocks>;

/// Keeps the state of a replica that has all rows, until a shutdown is requested. A single server has them always.
///
/// A new state is used when a second replica has its rows: then that one can be read when the first one fails.
pub(crate) async fn follow_replicas(app: App, shutdown: Shutdown) {
    let (clickhouse, recent) = (&app.clicks.client, &app.clicks.reports.recent);
    if !clickhouse.is_replicated() {
        return;
    }
    let (mut used, mut next): (Option<(usize, Complete)>, Option<State>) = (None, None);
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            _ = ticks.tick() => {}
        }
        if next.is_none() {
            next = read_state(clickhouse, recent, used.as_ref().map(|(replica, _)| *replica)).await;
        }
        if let Some(mut state) = next.take() {
            complete(clickhouse, &mut state.complete).await;
            let is_late = state.asked_at.elapsed() > UNSHARED;
            if are_complete(clickhouse, &state.complete, if is_late { 1 } else { 2 }).await {
                // Queries must not find the state before the replicas that have its rows.
                if choose(clickhouse, &state.complete).await {
                    recent.keep(state.asked_at, state.rows, state.conversions);
                    used = Some((state.replica, state.complete));
                }
                continue;
            }
            next = Some(state).filter(|_| !is_late);
        }
        if let Some((_, complete)) = &used {
            choose(clickhouse, complete).await;
        }
    }
}

/// Reads the state of the first replica that has the rows of all. The last one was read from `former`.
async fn read_state(clickhouse: &Clickhouse, recent: &Recent, former: Option<usize>) -> Option<State> {
    let last = recent.last(Duration::MAX);
    for replica in clickhouse.from_chosen() {
        let asked_at = Instant::now();
        match timeout(LIMIT, complete_state(&clickhouse.at(replica))).await {
            // While a partition is new, its progress is not known.
            Ok(Ok((rows, _))) if lacks_progress(&rows) => {
                tracing::debug!(replica, "a partition has no progress yet");
            }
            // The tables of the state itself may be behind there. Those of one replica do not go back, except when an
            // operator restores a backup.
            Ok(Ok((rows, _)))
                if former != Some(replica) && last.as_ref().is_some_and(|last| is_behind(&rows, last)) =>
            {
                tracing::debug!(replica, "the state of a replica is older");
            }
            Ok(Ok((rows, blocks))) => {
                let conversions = blocks.of_conversions();
                return Some(State {
                    replica,
                    asked_at,
                    rows,
                    conversions,
                    complete: [(replica, blocks)].into(),
                });
            }
            Ok(Err(error)) => tracing::debug!(replica, %error, "a replica is not complete: {error}"),
            Err(_) => tracing::debug!(replica, "a replica is not complete after {} s", LIMIT.as_secs()),
        }
    }
    None
}

/// Adds the other replicas that have all rows now.
async fn complete(clickhouse: &Clickhouse, known: &mut Complete) {
    let others = clickhouse.from_chosen().filter(|replica| !known.contains_key(replica));
    let asked = others.map(async |replica| {
        let blocks = timeout(LIMIT, all_blocks(&clickhouse.at(replica))).await;
        Some((replica, blocks.ok()?.ok()?))
    });
    let found = join_all(asked).await;
    known.extend(found.into_iter().flatten());
}

/// Returns whether this number of replicas of each shard is complete, or all.
async fn are_complete(clickhouse: &Clickhouse, complete: &Complete, wanted: usize) -> bool {
    let is_complete = |shard: &Clickhouse| {
        let found = shard.from_chosen().filter(|replica| complete.contains_key(replica)).count();
        found >= shard.from_chosen().count().min(wanted)
    };
    clickhouse.each_shard().await.is_ok_and(|shards| shards.iter().all(is_complete))
}

/// Changes to the first replica of each shard, from the present one on, that still has its blocks, or those of one that
/// is complete; returns whether each shard has one.
async fn choose(clickhouse: &Clickhouse, complete: &Complete) -> bool {
    let Ok(shards) = clickhouse.each_shard().await else { return false };
    let chosen = join_all(shards.iter().map(|shard| replica_with(shard, complete))).await;
    for (shard, replica) in shards.iter().zip(&chosen) {
        replica.iter().for_each(|replica| shard.choose(*replica));
    }
    chosen.iter().all(Option::is_some)
}

/// Returns the first replica of a shard that can be chosen.
async fn replica_with(shard: &Clickhouse, complete: &Complete) -> Option<usize> {
    let asked = shard.from_chosen().map(async |replica| {
        let found = timeout(LIMIT, Blocks::of(&shard.at(replica))).await.ok()?.ok()?;
        let has_rows = match complete.get(&replica) {
            Some(own) => found.cover(own),
            None => shard.from_chosen().filter_map(|other| complete.get(&other)).any(|own| found.cover(own)),
        };
        has_rows.then_some(replica)
    });
    join_all(asked).await.into_iter().flatten().next()
}

/// Returns whether it is unknown up to when all clicks are counted, although those of some sources are.
fn lacks_progress(rows: &[StateRow]) -> bool {
    rows.iter().any(|row| row.of == SOURCE) && Snapshot::of_rows(rows, 0).as_of.is_none()
}

/// Returns whether a state is older than the last one in any source or slice.
fn is_behind(rows: &[StateRow], last: &[StateRow]) -> bool {
    last.iter().filter(|last| last.of != LOG).any(|last| {
        let is_as_new =
            |row: &StateRow| row.of == last.of && row.number == last.number && row.value >= last.value;
        !rows.iter().any(is_as_new)
    })
}

/// Reads the state of a replica, and waits until it has the rows that the state promises, and all others.
async fn complete_state(replica: &Clickhouse) -> Result<(Arc<[StateRow]>, Blocks)> {
    let rows = replica.query_raw(&EVERYONES).fetch_all::<StateRow>().await?;
    Ok((rows.into(), all_blocks(replica).await?))
}

/// Waits until a replica has all rows, and returns its blocks.
async fn all_blocks(replica: &Clickhouse) -> Result<Blocks> {
    replica.sync(&COUNTED).await?;
    Blocks::of(replica).await
}

/// The blocks of rows that a replica has, by table and partition. A block has the same number on all replicas.
#[derive(Debug, Default)]
struct Blocks(BTreeMap<(String, String), Vec<RangeInclusive<i64>>>);

impl Blocks {
    async fn of(replica: &Clickhouse) -> Result<Self> {
        let tables: Vec<String> = COUNTED.iter().map(|table| format!("'{table}'")).collect();
        let sql = format!(
            "SELECT table, partition_id, min_block_number, max_block_number FROM system.parts \
             WHERE database = currentDatabase() AND active AND table IN ({}) \
             ORDER BY table, partition_id, min_block_number",
            tables.join(", ")
        );
        let rows: Vec<(String, String, i64, i64)> = replica.query_raw(&sql).fetch_all().await?;
        let mut blocks = Self::default();
        for (table, partition, first, last) in rows {
            let ranges = blocks.0.entry((table, partition)).or_default();
            // Parts are merged at different times on each replica, so adjacent ones count as one.
            match ranges.last_mut() {
                Some(range) if first <= range.end() + 1 => *range = *range.start()..=last.max(*range.end()),
                _ => ranges.push(first..=last),
            }
        }
        Ok(blocks)
    }

    fn of_conversions(&self) -> Arc<[Range]> {
        let ranges =
            self.0.iter().filter(|((table, _), _)| table == "conversions").flat_map(|(_, ranges)| ranges);
        ranges.map(|range| Range { start: *range.start(), end: range.end() + 1 }).collect()
    }

    /// Returns whether these are at least the others.
    fn cover(&self, others: &Self) -> bool {
        others.0.iter().all(|(place, ranges)| {
            let own = self.0.get(place).map_or(&[][..], Vec::as_slice);
            ranges.iter().all(|other| {
                own.iter().any(|range| range.start() <= other.start() && other.end() <= range.end())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(ranges: &[RangeInclusive<i64>]) -> Blocks {
        Blocks([(("clicks".to_owned(), "20261125".to_owned()), ranges.to_vec())].into())
    }

    #[test]
    fn a_replica_covers_its_blocks_however_they_are_merged() {
        assert!(blocks(&[0..=9]).cover(&blocks(&[0..=3, 5..=9])));
        assert!(!blocks(&[0..=3, 5..=9]).cover(&blocks(&[0..=9])));
        assert!(blocks(&[0..=3]).cover(&Blocks::default()));
        assert!(!Blocks::default().cover(&blocks(&[0..=0])));
    }
}
