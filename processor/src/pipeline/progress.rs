//! Up to when clicks are counted, written each second, and the metrics and the check that follow from it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::gauge;
use schemas::time::to_millis;
use service::{Check, Shutdown};
use tokio::time::{MissedTickBehavior, interval};

use crate::clickhouse::clock::Clock;
use crate::clickhouse::{Progress, Right, Store, StoreError};
use crate::pipeline::lanes::{Lanes, Phase};
use crate::pipeline::log::{Log, LogError};

const INTERVAL: Duration = Duration::from_secs(1);

/// Writes progress until the stop is requested.
///
/// A source's `as_of` is the broker's time of its last counted click. Where nothing is left to count, it is the
/// moment before the log's end was asked for, by the earlier one of two clocks: whatever Kafka had accepted by then is
/// below that end. The end is asked for each time, and not inferred from silence, which a broken connection makes too.
pub async fn write_progress(lanes: &Lanes, log: &Log, store: &Store, check: &Check, shutdown: &Shutdown) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut clock = None;
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            _ = ticks.tick() => {}
        }
        let phases = lanes.phases();
        // What the last round knows, because this one may take long while an engine is away.
        state(&phases, clock, check);
        tokio::select! {
            () = shutdown.wait() => return,
            read = round(&phases, lanes, log, store) => clock = read,
        }
    }
}

/// Writes progress once, and returns how the clocks are; progress stands still where something does not answer, whose own
/// check says so.
async fn round(phases: &[(i32, Phase)], lanes: &Lanes, log: &Log, store: &Store) -> Option<Clock> {
    let written = async {
        // Before the log's ends are asked for: what was accepted by then is below them.
        let clock = Clock::read(store).await?;
        let counted = measure(phases, lanes, log, clock).await;
        if !counted.is_empty() && is_all_taken(log, store).await? {
            write(&counted, lanes, store).await?;
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

/// Returns whether each partition that Kafka has was taken by somebody once: clicks of one that was not may wait there, so
/// nothing is said of any.
async fn is_all_taken(log: &Log, store: &Store) -> Result<bool, ProgressError> {
    let (partitions, sources) = (log.partitions().await?, store.sources().await?);
    let untaken = (0..partitions).find(|partition| sources.last(*partition).is_none());
    if let Some(partition) = untaken {
        tracing::debug!(partition, "nobody has taken partition {partition} yet");
    }
    Ok(untaken.is_none())
}

/// Writes up to when the clicks of each partition are counted.
///
/// What was written before is read first: a ClickHouse that has less of it is an older copy, and has fewer rows too.
async fn write(counted: &[Counted], lanes: &Lanes, store: &Store) -> Result<(), StoreError> {
    let there = store.progress().await?;
    let (known, lost): (Vec<&Counted>, Vec<_>) =
        counted.iter().partition(|counted| there.get(&counted.right.src).copied() >= counted.known);
    for Counted { partition, right, .. } in lost {
        tracing::warn!(
            partition,
            "ClickHouse has less of partition {partition} than it had, taking it again"
        );
        lanes.tell_lost(*partition, *right);
    }
    if known.is_empty() {
        return Ok(());
    }
    let row = |counted: &&Counted| {
        let Counted { right, as_of, known, .. } = **counted;
        Progress { src: right.src, as_of, known }
    };
    store.write_progress(&known.iter().map(row).collect::<Vec<_>>()).await?;
    for Counted { partition, right, as_of, known } in known {
        lanes.tell_counted(*partition, *right, known.map_or(*as_of, |known| known.max(*as_of)));
    }
    Ok(())
}

/// States whether each assigned partition is owned, and the clock can be believed.
fn state(phases: &[(i32, Phase)], clock: Option<Clock>, check: &Check) {
    if let Some(Err(differ)) = clock.map(|clock| clock.agreed()) {
        return check.unready(differ.to_string());
    }
    let refusal = phases.iter().find_map(|(_, phase)| match phase {
        Phase::Refused(reason) => Some(reason),
        _ => None,
    });
    let taking: Vec<String> = phases
        .iter()
        .filter(|(_, phase)| *phase == Phase::Taking)
        .map(|(partition, _)| partition.to_string())
        .collect();
    match refusal {
        Some(reason) => check.unready(reason),
        None if taking.is_empty() => check.ready_with(format!("owns {} partitions", phases.len())),
        None => check.unready(format!("taking partitions {} over", taking.join(", "))),
    }
}

/// Up to when the clicks of a partition are counted.
#[derive(Debug)]
struct Counted {
    partition: i32,
    right: Right,
    as_of: DateTime<Utc>,
    /// What ClickHouse is known to have said already.
    known: Option<DateTime<Utc>>,
}

/// Measures the lag of each owned partition, and returns up to when its clicks are counted.
async fn measure(phases: &[(i32, Phase)], lanes: &Lanes, log: &Log, clock: Clock) -> Vec<Counted> {
    let mut counted = Vec::new();
    for (partition, phase) in phases {
        let Phase::Owned { right, as_of: known, next, broker_ts } = phase else { continue };
        let (partition, right, known) = (*partition, *right, *known);
        // As the table keeps it: with less it would be missed in the next round.
        let asked_at = to_millis(Utc::now()).min(clock.clickhouse);
        let caught_up = match log.extent(partition).await {
            Ok(extent) => {
                let lag = extent.end.saturating_sub(*next);
                gauge!("hopline_processor_lag_offsets", "partition" => partition.to_string()).set(lag as f64);
                if extent.end < *next {
                    // It was cut, or is another one, and nothing of it is counted yet.
                    lanes.tell_lost(partition, right);
                }
                extent.end == *next
            }
            Err(error) => {
                tracing::debug!(partition, %error, "cannot measure the lag: {error}");
                false
            }
        };
        let as_of = if caught_up { Some(asked_at) } else { broker_ts.map(|ts| ts.min(clock.clickhouse)) };
        counted.extend(as_of.map(|as_of| Counted { partition, right, as_of, known }));
    }
    counted
}
