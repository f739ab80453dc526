//! Writes each second up to when clicks are counted, and updates the metrics of partitions and the readiness check.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::gauge;
use schemas::time::to_millis;
use service::metrics::UNKNOWN;
use service::{Check, Shutdown};
use tokio::time::{MissedTickBehavior, interval};

use crate::clickhouse::clock::Clock;
use crate::clickhouse::sources::Sources;
use crate::clickhouse::{FencingToken, Progress, Store, StoreError};
use crate::pipeline::lane_state::Phase;
use crate::pipeline::lanes::Lanes;
use crate::pipeline::log::{Log, LogError};

const INTERVAL: Duration = Duration::from_secs(1);

/// Writes progress until the stop is requested.
///
/// A source's `as_of` is the broker's time of its last counted click. When nothing is left to count, it is the time
/// just before the log's end was requested, by the earlier of two clocks: every record that Kafka had accepted by then
/// is below that end. The end is requested each time, because a lack of records may also mean a broken connection.
pub async fn write_progress(lanes: &Lanes, log: &Log, store: &Store, check: &Check, shutdown: &Shutdown) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut clock, mut owned) = (None, BTreeSet::new());
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            _ = ticks.tick() => {}
        }
        let has_joined = lanes.has_joined();
        let phases = lanes.phases();
        owned = forget_moved(owned, &phases);
        // Uses the clock of the last round, because this round may take long while an engine is unreachable.
        if has_joined {
            update_check(&phases, clock, check);
        } else {
            check.unready("waiting for partitions");
        }
        tokio::select! {
            () = shutdown.wait() => return,
            read = round(&phases, lanes, log, store) => clock = read,
        }
    }
}

/// Removes the metrics of partitions that this process does not own any more, and returns those that it owns. Another
/// process may own them now, and two values of a partition would contradict each other.
fn forget_moved(before: BTreeSet<i32>, phases: &[(i32, Phase)]) -> BTreeSet<i32> {
    let is_owned = |phase: &Phase| matches!(phase, Phase::Owned { .. });
    let owned: BTreeSet<i32> =
        phases.iter().filter(|(_, phase)| is_owned(phase)).map(|(partition, _)| *partition).collect();
    for partition in before.difference(&owned) {
        set_lag(*partition, UNKNOWN);
        set_counted_until(*partition, UNKNOWN);
    }
    owned
}

fn set_lag(partition: i32, records: f64) {
    gauge!("hopline_processor_lag_offsets", "partition" => partition.to_string()).set(records);
}

fn set_counted_until(partition: i32, seconds: f64) {
    gauge!("hopline_processor_counted_until_seconds", "partition" => partition.to_string()).set(seconds);
}

/// Writes progress once, and returns the clocks. Writes nothing while Kafka or ClickHouse does not answer, which their
/// own checks report.
async fn round(phases: &[(i32, Phase)], lanes: &Lanes, log: &Log, store: &Store) -> Option<Clock> {
    let written = async {
        // Read before the log's ends: every record accepted by then is below them.
        let clock = Clock::read(store).await?;
        let counted = measure(phases, lanes, log, clock).await;
        if counted.is_empty() {
            return Ok(clock);
        }
        let sources = store.sources().await?;
        let (present, replaced): (Vec<Counted>, Vec<Counted>) =
            counted.into_iter().partition(|counted| sources.of(counted.partition) == counted.token.src);
        for Counted { partition, token, .. } in replaced {
            // An operator's command began another source. A lane without clicks would not notice.
            lanes.notify_lost(partition, token);
        }
        if !present.is_empty() && is_every_partition_taken_over(log, &sources).await? {
            // On the replica on which each lane's inserts check it.
            let mut of_shards: BTreeMap<u16, Vec<Counted>> = BTreeMap::new();
            for counted in present {
                let shard = sources.last(counted.partition).map_or(0, |source| source.shard);
                of_shards.entry(shard).or_default().push(counted);
            }
            for (shard, counted) in of_shards {
                write(&counted, lanes, &store.of_shard(shard).await?).await?;
            }
        }
        Ok::<_, ProgressError>(clock)
    };
    written.await.inspect_err(|error| tracing::debug!(%error, "cannot write progress: {error}")).ok()
}

/// Why no progress was written.
#[derive(Debug, thiserror::Error)]
enum ProgressError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Returns whether every partition of the topic was taken over at least once. While one was not, its clicks may be
/// waiting there uncounted, so no progress is written at all.
async fn is_every_partition_taken_over(log: &Log, sources: &Sources) -> Result<bool, ProgressError> {
    let partitions = log.partitions().await?;
    let not_taken_over = (0..partitions).find(|partition| sources.last(*partition).is_none());
    if let Some(partition) = not_taken_over {
        tracing::debug!(partition, "partition {partition} was not taken over yet");
    }
    Ok(not_taken_over.is_none())
}

/// Writes up to when the clicks of each partition are counted.
///
/// Reads the previous progress first: a ClickHouse that has less is an older copy, which also has fewer rows.
async fn write(counted: &[Counted], lanes: &Lanes, store: &Store) -> Result<(), StoreError> {
    let there = store.progress().await?;
    let (known, lost): (Vec<&Counted>, Vec<_>) =
        counted.iter().partition(|counted| there.get(&counted.token.src).copied() >= counted.known);
    for Counted { partition, token, .. } in lost {
        tracing::warn!(
            partition,
            "ClickHouse is an older copy: it has less of partition {partition}, taking it over again"
        );
        lanes.notify_lost(*partition, *token);
    }
    if known.is_empty() {
        return Ok(());
    }
    let row = |counted: &&Counted| {
        let Counted { token, as_of, known, .. } = **counted;
        Progress { src: token.src, as_of, known }
    };
    store.write_progress(&known.iter().map(row).collect::<Vec<_>>()).await?;
    for Counted { partition, token, as_of, known } in known {
        let counted = known.map_or(*as_of, |known| known.max(*as_of));
        lanes.notify_counted(*partition, *token, counted);
        set_counted_until(*partition, counted.timestamp_millis() as f64 / 1_000.0);
    }
    Ok(())
}

/// Updates the readiness check: are all assigned partitions owned, and do the clocks agree?
fn update_check(phases: &[(i32, Phase)], clock: Option<Clock>, check: &Check) {
    if let Some(Err(differ)) = clock.map(|clock| clock.agreed()) {
        return check.unready(differ.to_string());
    }
    let blocked = phases.iter().find_map(|(_, phase)| match phase {
        Phase::Blocked(reason) => Some(reason),
        _ => None,
    });
    let taking: Vec<String> = phases
        .iter()
        .filter(|(_, phase)| *phase == Phase::TakingOver)
        .map(|(partition, _)| partition.to_string())
        .collect();
    match blocked {
        Some(reason) => check.unready(reason),
        None if taking.is_empty() => check.ready_with(format!("owns {} partitions", phases.len())),
        None => check.unready(format!("taking partitions {} over", taking.join(", "))),
    }
}

/// Up to when the clicks of a partition are counted.
#[derive(Debug)]
struct Counted {
    partition: i32,
    token: FencingToken,
    as_of: DateTime<Utc>,
    /// The time that is known to be stored in ClickHouse already.
    known: Option<DateTime<Utc>>,
}

/// Measures the lag of each owned partition, and returns up to when its clicks are counted.
async fn measure(phases: &[(i32, Phase)], lanes: &Lanes, log: &Log, clock: Clock) -> Vec<Counted> {
    let mut counted = Vec::new();
    for (partition, phase) in phases {
        let Phase::Owned { token, as_of: known, next, broker_ts } = phase else { continue };
        let (partition, token, known) = (*partition, *token, *known);
        // In the precision of the table; otherwise the next round would find less than it wrote.
        let asked_at = to_millis(Utc::now()).min(clock.clickhouse);
        let caught_up = match log.extent(partition).await {
            Ok(extent) => {
                let lag = extent.end.saturating_sub(*next);
                set_lag(partition, lag as f64);
                if extent.end < *next {
                    // The log was truncated or replaced, and none of its new records is counted yet.
                    lanes.notify_lost(partition, token);
                }
                extent.end == *next
            }
            Err(error) => {
                tracing::debug!(partition, %error, "cannot measure the lag: {error}");
                false
            }
        };
        let as_of = if caught_up { Some(asked_at) } else { broker_ts.map(|ts| ts.min(clock.clickhouse)) };
        counted.extend(as_of.map(|as_of| Counted { partition, token, as_of, known }));
    }
    counted
}
