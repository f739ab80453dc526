//! The processor, and the rollups that it computes when a day is over.

use std::time::Instant;

use ::tests::deployment::Deployment;
use anyhow::{Context as _, ensure};
use chrono::NaiveDate;
use processor::config::GROUP;
use schemas::clickhouse::rollup::{Run, Scope};
use schemas::row::UPKEEP;
use serde::Serialize;

use super::stage::{Cpu, Round, Stage};
use crate::server::{peak_mib, start, stop};

/// The epoch of the rollups here, above that of any processor.
const VERSION: u64 = u64::MAX >> 1;

/// The processor in one round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Processed {
    /// Raw rows, which queries of an open day read.
    pub(super) raw: Round,
    /// Raw rows and their rollups.
    pub(super) with_rollups: Round,
    pub(super) peak_mib: u64,
}

/// Runs the processor over the topic, then computes the rollups with its statements for a day's end.
pub(super) async fn round(stage: &Stage) -> anyhow::Result<Processed> {
    stage.clear().await?;
    let started = Instant::now();
    let deployment = Deployment::prepare(stage.engines.clone());
    let processor = start(&deployment.processor).await?;
    let before = stage.read(std::slice::from_ref(&processor))?;
    let rows_per_second = stage.filled(started).await?;
    stage.settle().await?;
    let raw_cpu = stage.used(before, stage.read(std::slice::from_ref(&processor))?);
    let peak_mib = peak_mib(&processor)?;
    stop(&processor).await?;
    stage.check_rows().await?;

    let before = stage.read(&[])?;
    let rolled_up = Instant::now();
    roll_up(stage).await?;
    let seconds = stage.clicks as f64 / rows_per_second + rolled_up.elapsed().as_secs_f64();
    stage.settle().await?;
    let more = stage.used(before, stage.read(&[])?);
    let cpu = Cpu {
        client: raw_cpu.client,
        kafka: raw_cpu.kafka + more.kafka,
        clickhouse: raw_cpu.clickhouse + more.clickhouse,
    };
    stage.engines.delete_group(GROUP).await;
    Ok(Processed {
        raw: Round { rows_per_second, cpu_seconds_per_million: raw_cpu },
        with_rollups: Round { rows_per_second: stage.clicks as f64 / seconds, cpu_seconds_per_million: cpu },
        peak_mib,
    })
}

async fn roll_up(stage: &Stage) -> anyhow::Result<()> {
    let engines = &stage.engines;
    engines.clickhouse(&format!("INSERT INTO owners SELECT {UPKEEP}, {VERSION}, 'bench', now64(3)")).await;
    let days = engines.clickhouse("SELECT DISTINCT toDate(broker_ts) FROM clicks ORDER BY 1").await;
    let slice = |day: &str| Ok::<_, chrono::ParseError>((day.parse::<NaiveDate>()?, 1));
    let slices = days.lines().map(slice).collect::<Result<_, _>>().context("a day is not a date")?;
    let run = Run { scope: Scope::All, version: VERSION, slices };
    for statement in run.statements() {
        engines.clickhouse(&format!("{statement} SETTINGS max_threads = 2")).await;
    }
    let counted =
        stage.number("SELECT sum(clicks) FROM counts WHERE unit = 'hour' AND toUInt128(link_id) = 0").await?;
    ensure!(counted == stage.clicks, "{counted} clicks in the rollups instead of {}", stage.clicks);
    Ok(())
}
