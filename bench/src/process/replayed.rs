//! `bench replay`: the log read again beside live clicks, and the audit of all of it.

use std::{
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use ::tests::engines::{Isolated, isolated};
use anyhow::{Context as _, ensure};
use devstack::process::Memory;
use serde::Serialize;
use tokio::{process::Command, time::sleep};

use super::{clicks, clicks::Times, freshness, freshness::Freshness, processed, stage::Stage};
use crate::{
    child,
    prepare::{ENGINES, prepare},
    terminal::{complain, say},
};

/// Days that the clicks are of.
const DAYS: u32 = 2;

/// How long the rollups of the days may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Time between two looks at the memory of a command.
const LOOK: Duration = Duration::from_millis(200);

/// What is measured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Clicks that are counted before, and then read again
    #[arg(long, value_name = "COUNT", default_value = "10000000", value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    clicks: u64,
    /// Live clicks per second meanwhile
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// A command of the operator's.
#[derive(Debug, Clone, Copy, Serialize)]
struct Run {
    seconds: f64,
    rows_per_second: f64,
    peak_mib: u64,
}

/// All that was measured.
#[derive(Debug, Serialize)]
struct Report {
    clicks: u64,
    /// Rows per second of the processor, before, with nothing else to do.
    live_rows_per_second: f64,
    /// Of all days, with their rollups.
    replay: Run,
    /// Of live clicks, while the log is read again.
    freshness: Freshness,
    audit: Run,
}

/// Measures and prints the result.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    prepare(&ENGINES)?;
    let Options { clicks: count, rate, json } = options;
    let stage = Stage::new(isolated().await, count)?;
    let engines = &stage.engines;
    complain(&format!("writing {count} clicks to a topic"));
    clicks::write(engines, count, Times::Past(DAYS)).await?;
    complain("counting them");
    let started = Instant::now();
    let processor = processed::start(engines).await?;
    let live_rows_per_second = stage.filled(started).await?;
    closed(&stage).await?;
    stage.settle().await?;
    complain(&format!(
        "{live_rows_per_second:.0} rows a second; reading the log again, with {rate} live clicks a second"
    ));
    let replay = async || command(engines, &["replay", "--from", "earliest"], count).await;
    let (freshness, replay) = freshness::measure(engines, &processor, rate, count, replay).await?;
    processor.stop().await?;
    complain("audit");
    let rows = stage.number("SELECT count() FROM clicks").await?;
    let audit = command(engines, &["audit"], rows).await?;
    let report = Report { clicks: count, live_rows_per_second, replay, freshness, audit };
    stage.engines.remove().await;
    say(&if json { serde_json::to_string(&report)? } else { report.text() });
    Ok(())
}

/// Waits until the days are closed, and makes that an hour ago: before, a replay would only add what is missing.
async fn closed(stage: &Stage) -> anyhow::Result<()> {
    complain("closing their days");
    let deadline = Instant::now() + PATIENCE;
    while stage.number("SELECT uniqExact(slice) FROM slices").await? < u64::from(DAYS) {
        ensure!(Instant::now() < deadline, "the days are not closed");
        sleep(LOOK).await;
    }
    let earlier = "ALTER TABLE slices UPDATE at = at - 3600 WHERE 1 SETTINGS mutations_sync = 1";
    stage.engines.clickhouse(earlier).await;
    Ok(())
}

/// Runs the processor with a command of the operator's to its end.
async fn command(engines: &Isolated, command: &[&str], rows: u64) -> anyhow::Result<Run> {
    let program: PathBuf = child::beside("processor")?;
    let started = Instant::now();
    let mut running = Command::new(program)
        .args(command)
        .envs(processed::environment(engines))
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let id = running.id().context("it has ended")?;
    let mut peak = 0;
    let ended = loop {
        if let Some(ended) = running.try_wait()? {
            break ended;
        }
        // It may have ended between the two looks.
        peak = Memory::of(id).map_or(peak, |memory| memory.peak);
        sleep(LOOK).await;
    };
    ensure!(ended.success(), "processor {} ended with {ended}", command.join(" "));
    let seconds = started.elapsed().as_secs_f64();
    Ok(Run { seconds, rows_per_second: rows as f64 / seconds, peak_mib: peak >> 20 })
}

impl Report {
    /// The result for people.
    fn text(&self) -> String {
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
                "live clicks meanwhile, {}: visible after p50 {} ms, p99 {} ms, longest {} ms; peak {} MiB",
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
