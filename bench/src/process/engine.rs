//! The peer: ClickHouse's own Kafka engine.

use std::time::Instant;

use anyhow::ensure;
use schemas::topic;
use serde::Serialize;
use uuid::Uuid;

use super::stage::{Cpu, Round, Stage};

/// The tables and views of a round; the last statement starts it.
const SQL: &str = include_str!("engine.sql");

/// The tables and views, consumers first.
const CREATED: [&str; 6] = [
    "engine_to_clicks",
    "engine_queue",
    "engine_to_counts",
    "engine_to_breakdowns",
    "engine_counts",
    "engine_breakdowns",
];

/// The engine in one round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Engine {
    pub(super) round: Round,
    /// Rows beyond one for each click; the engine stores each at least once.
    pub(super) repeats: u64,
}

/// Runs the engine over the topic, with views that count as it inserts.
pub(super) async fn round(stage: &Stage) -> anyhow::Result<Engine> {
    stage.clear().await?;
    let before = stage.read(&[])?;
    let started = Instant::now();
    for statement in statements(stage) {
        stage.engines.clickhouse(&statement).await;
    }
    let rows_per_second = stage.filled(started).await?;
    // The views' rows follow the raw ones of the same block.
    let counted = "SELECT sum(clicks) FROM engine_counts WHERE unit = 'hour' AND toUInt128(link_id) = 0";
    let broken_down =
        "SELECT sum(clicks) FROM engine_breakdowns WHERE dimension = 'os' AND toUInt128(link_id) = 0";
    for view in [counted, broken_down] {
        while stage.number(view).await? < stage.clicks {
            ensure!(started.elapsed() < super::stage::DEADLINE, "the views lack clicks: {view}");
            tokio::time::sleep(super::stage::POLL).await;
        }
    }
    stage.settle().await?;
    let cpu = stage.used(before, stage.read(&[])?);
    for name in CREATED {
        stage.engines.clickhouse(&format!("DROP TABLE {name} SYNC")).await;
    }
    let rows = stage.number("SELECT count() FROM clicks").await?;
    // This program only polled.
    let cpu_seconds_per_million = Cpu { client: 0.0, ..cpu };
    Ok(Engine { round: Round { rows_per_second, cpu_seconds_per_million }, repeats: rows - stage.clicks })
}

fn statements(stage: &Stage) -> Vec<String> {
    let sql = SQL
        .replace("{brokers}", &stage.engines.kafka_brokers)
        .replace("{topic}", &stage.engines.topic(topic::CLICKS))
        // A new group starts at the beginning.
        .replace("{group}", &format!("{}engine-{}", stage.engines.topic_prefix, Uuid::now_v7().simple()));
    sql.split(";\n").map(str::trim).filter(|statement| !statement.is_empty()).map(str::to_owned).collect()
}
