//! `bench replay`: `processor replay` beside live clicks, and `processor audit`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use ::tests::deployment::Deployment;
use ::tests::engines::{Isolated, isolated_with_given_times};
use ::tests::processor;
use anyhow::{Context as _, ensure};
use devstack::process::Memory;
use serde::Serialize;
use tokio::time::sleep;

use super::clicks;
use super::freshness::{self, Freshness};
use super::stage::Stage;
use crate::server::{LOG_FILTER, start, stop};
use crate::terminal::{ENGINES, prepare, report_progress};

/// Closed days of the clicks.
const DAYS: u32 = 2;

/// How long closing the days may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Time between two readings of a command's memory.
const POLL: Duration = Duration::from_millis(200);

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Clicks that are counted first and then replayed
    #[arg(
        long, value_name = "COUNT", default_value = "10000000",
        value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000)
    )]
    clicks: u64,
    /// Live clicks per second during the replay
    #[arg(
        long, value_name = "COUNT", default_value = "1000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    rate: u32,
}

/// One run of a command.
#[derive(Debug, Clone, Copy, Serialize)]
struct Run {
    seconds: f64,
    rows_per_second: f64,
    peak_mib: u64,
}

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    clicks: u64,
    /// Rows per second of the processor before the replay.
    live_rows_per_second: f64,
    /// All days, with their rollups.
    replay: Run,
    /// Live clicks during the replay.
    freshness: Freshness,
    audit: Run,
}

/// Measures a replay and an audit.
pub(crate) async fn run(options: Options) -> anyhow::Result<Report> {
    prepare(&ENGINES)?;
    let Options { clicks: count, rate } = options;
    let stage = Stage::new(isolated_with_given_times().await, count)?;
    let engines = &stage.engines;
    report_progress(&format!("writing {count} clicks to a topic"));
    clicks::write(engines, count, Some(DAYS)).await?;
    report_progress("counting them");
    let started = Instant::now();
    let deployment = Deployment::prepare(engines.clone());
    let processor = start(&deployment.processor).await?;
    let live_rows_per_second = stage.filled(started).await?;
    days_are_closed(&stage).await?;
    stage.settle().await?;
    report_progress(&format!("{live_rows_per_second:.0} rows/s; replaying with {rate} live clicks/s"));
    let replay = async || command(engines, &["replay", "--from", "earliest"], count).await;
    let (freshness, replay) = freshness::measure(engines, &processor, rate, count, replay).await?;
    stop(&processor).await?;
    report_progress("auditing");
    let rows = stage.number("SELECT count() FROM clicks").await?;
    let audit = command(engines, &["audit"], rows).await?;
    let report = Report { clicks: count, live_rows_per_second, replay, freshness, audit };
    stage.engines.remove().await;
    Ok(report)
}

/// Waits until the days are closed, and dates that back by an hour: before, a replay would only add missing rows.
async fn days_are_closed(stage: &Stage) -> anyhow::Result<()> {
    report_progress("waiting until their days are closed");
    let deadline = Instant::now() + PATIENCE;
    while stage.number("SELECT uniqExact(slice) FROM slices").await? < u64::from(DAYS) {
        ensure!(Instant::now() < deadline, "the days are not closed");
        sleep(POLL).await;
    }
    let earlier = "ALTER TABLE slices UPDATE at = at - 3600 WHERE 1 SETTINGS mutations_sync = 1";
    stage.engines.clickhouse(earlier).await;
    Ok(())
}

/// Runs a command of the processor to its end.
async fn command(engines: &Isolated, arguments: &[&str], rows: u64) -> anyhow::Result<Run> {
    let started = Instant::now();
    let mut running =
        processor::command(engines, arguments).env("RUST_LOG", LOG_FILTER).stdout(Stdio::null()).spawn()?;
    let id = running.id().context("the command has ended")?;
    let mut peak = 0;
    let ended = loop {
        if let Some(ended) = running.try_wait()? {
            break ended;
        }
        // It may have ended since.
        peak = Memory::of(id).map_or(peak, |memory| memory.peak);
        sleep(POLL).await;
    };
    ensure!(ended.success(), "processor {} exited with {ended}", arguments.join(" "));
    let seconds = started.elapsed().as_secs_f64();
    Ok(Run { seconds, rows_per_second: rows as f64 / seconds, peak_mib: peak >> 20 })
}

impl Report {
    /// Returns the result for people.
    pub(crate) fn text(&self) -> String {
        let Self { clicks, replay, freshness, audit, .. } = self;
        [
            format!("{clicks} clicks"),
            format!("live, alone: {:.0} rows/s", self.live_rows_per_second),
            format!(
                "replay, with {:.0} live clicks/s: {:.1} s, {:.0} rows/s, {:.3} of live; peak {} MiB",
                freshness.sent_per_second,
                replay.seconds,
                replay.rows_per_second,
                replay.rows_per_second / self.live_rows_per_second,
                replay.peak_mib
            ),
            format!(
                "live clicks during the replay, {}: visible after p50 {} ms, p99 {} ms, longest {} ms; peak {} MiB",
                freshness.clicks, freshness.p50_ms, freshness.p99_ms, freshness.max_ms, freshness.peak_mib
            ),
            format!(
                "audit: equal after {:.1} s, {:.0} rows/s; peak {} MiB",
                audit.seconds, audit.rows_per_second, audit.peak_mib
            ),
        ]
        .join("\n")
    }
}
