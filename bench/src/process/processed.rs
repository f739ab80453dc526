//! The processor, as an operator runs it, and the rollups that it computes when a day is over.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Instant,
};

use ::tests::engines::Isolated;
use anyhow::{Context as _, ensure};
use chrono::NaiveDate;
use devstack::ports;
use processor::config::GROUP;
use schemas::{
    clickhouse::rollup::{Run, Scope},
    row::UPKEEP,
};
use serde::Serialize;

use super::{
    LOG_FILTER,
    stage::{Cpu, Round, Stage},
};
use crate::child::{self, Child};

/// The epoch under which rollups are computed here: above any that a processor takes.
const VERSION: u64 = u64::MAX >> 1;

/// What the processor did in one round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Processed {
    /// Raw rows, which are what queries of the same day read.
    pub(super) raw: Round,
    /// Raw rows and the rollups of them: all that it does for a click.
    pub(super) with_rollups: Round,
    pub(super) rows_per_part: f64,
    pub(super) peak_mib: u64,
}

/// What the processor and its commands are told of the engines.
pub(super) fn environment(engines: &Isolated) -> [(&'static str, String); 4] {
    [
        ("RUST_LOG", LOG_FILTER.to_owned()),
        ("KAFKA_BROKERS", engines.kafka_brokers.clone()),
        ("CLICKHOUSE_URL", engines.clickhouse_url.clone()),
        ("HOPLINE_TOPIC_PREFIX", engines.topic_prefix.clone()),
    ]
}

/// Starts the processor on these engines.
pub(super) async fn start(engines: &Isolated) -> anyhow::Result<Child> {
    let operations = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()?));
    let mut environment = environment(engines).to_vec();
    environment.push(("HOPLINE_PROCESSOR_OPERATIONS_LISTEN", operations.to_string()));
    let (program, url) = (child::beside("processor")?, format!("http://{operations}"));
    Child::start("processor", program, vec![], environment, (&url, "/readyz")).await
}

/// Lets the processor work off the topic, then computes the rollups as it does at a day's end.
pub(super) async fn round(stage: &Stage) -> anyhow::Result<Processed> {
    stage.clear().await?;
    let started = Instant::now();
    let processor = start(&stage.engines).await?;
    // A program that has just started has used next to nothing.
    let before = stage.read(Some(&processor))?;
    let rows_per_second = stage.filled(started).await?;
    let parts = "SELECT count() FROM system.parts WHERE database = currentDatabase() AND table = 'clicks' \
                 AND level = 0";
    let parts = stage.number(parts).await?;
    stage.settle().await?;
    let raw_cpu = stage.used(before, stage.read(Some(&processor))?);
    let peak_mib = processor.peak_memory()? >> 20;
    processor.stop().await?;
    is_exact(stage).await?;

    let before = stage.read(None)?;
    let rolled_up = Instant::now();
    roll_up(stage).await?;
    let seconds = stage.clicks as f64 / rows_per_second + rolled_up.elapsed().as_secs_f64();
    stage.settle().await?;
    let more = stage.used(before, stage.read(None)?);
    let cpu = Cpu {
        client: raw_cpu.client,
        kafka: raw_cpu.kafka + more.kafka,
        clickhouse: raw_cpu.clickhouse + more.clickhouse,
    };
    stage.forget_group(&format!("{}{GROUP}", stage.engines.topic_prefix)).await?;
    Ok(Processed {
        raw: Round { rows_per_second, cpu_seconds_per_million: raw_cpu },
        with_rollups: Round { rows_per_second: stage.clicks as f64 / seconds, cpu_seconds_per_million: cpu },
        // Those that were merged meanwhile and removed are not seen any more, so this is at least what it was.
        rows_per_part: stage.clicks as f64 / parts.max(1) as f64,
        peak_mib,
    })
}

/// Holds that every position of the topic is a row once.
async fn is_exact(stage: &Stage) -> anyhow::Result<()> {
    let found = stage
        .engines
        .clickhouse("SELECT count(), uniqExact(src, koff), uniqExact(click_id) FROM clicks")
        .await;
    let clicks = stage.clicks;
    let expected = format!("{clicks}\t{clicks}\t{clicks}");
    ensure!(found.trim() == expected, "rows, positions, click ids: {}, and not {expected}", found.trim());
    Ok(())
}

async fn roll_up(stage: &Stage) -> anyhow::Result<()> {
    let engines = &stage.engines;
    engines.clickhouse(&format!("INSERT INTO owners SELECT {UPKEEP}, {VERSION}, 'bench', now64(3)")).await;
    let days = engines.clickhouse("SELECT DISTINCT toDate(broker_ts) FROM clicks ORDER BY 1").await;
    let slice = |day: &str| Ok::<_, chrono::ParseError>((day.parse::<NaiveDate>()?, 1));
    let slices = days.lines().map(slice).collect::<Result<_, _>>().context("a day is no date")?;
    let run = Run { scope: Scope::All, version: VERSION, slices };
    for statement in run.statements() {
        engines.clickhouse(&format!("{statement} SETTINGS max_threads = 2")).await;
    }
    let counted =
        stage.number("SELECT sum(clicks) FROM counts WHERE unit = 'hour' AND toUInt128(link_id) = 0").await?;
    ensure!(counted == stage.clicks, "{counted} clicks are in the rollups, and not {}", stage.clicks);
    Ok(())
}
