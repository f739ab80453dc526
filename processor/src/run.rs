//! Runs the processor.

use std::sync::Arc;

use anyhow::Context as _;
use futures_util::{FutureExt as _, TryFutureExt as _};
use schemas::topic;
use service::clickhouse::Clickhouse;
use service::http::serve_operations;
use service::kafka::{self, DeadLetters};
use service::metrics::Metrics;
use service::{Health, Shutdown, clickhouse, traces};
use tokio::net::TcpListener;
use tokio::sync::watch;
use uuid::Uuid;

use crate::Config;
use crate::clickhouse::Store;
use crate::operate::audit::scheduled::audits;
use crate::pipeline::consume::consume;
use crate::pipeline::deleted_links::DeletedLinks;
use crate::pipeline::intake;
use crate::pipeline::lane::Tools;
use crate::pipeline::lanes::Lanes;
use crate::pipeline::progress::write_progress;
use crate::upkeep::{Turn, count_conversions, upkeep};

/// Runs the processor until a stop is requested and the inserts in flight are finished.
///
/// It starts even when Kafka and ClickHouse are down, and waits for them.
///
/// # Errors
/// When the configuration is invalid for a client, or consuming fails for good.
pub async fn run(
    config: Config,
    operations: TcpListener,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let health = Health::new(&shutdown);
    // Every check is registered before the first /readyz: no check would mean ready.
    let partitions = health.check("partitions");
    let (clickhouse_check, kafka_check) = (health.check("clickhouse"), health.check("kafka"));
    let _operations = serve_operations(operations, &health, &metrics);

    let clicks = config.kafka.topic(topic::CLICKS.name);
    let group = config.kafka.topic(config.group);
    let letters = config.kafka.topic(topic::DEAD_LETTERS.name);
    let topics = vec![clicks.clone(), letters.clone()];
    let client = Clickhouse::new(&config.clickhouse);
    tokio::spawn(clickhouse::watch(client.clone(), clickhouse_check, shutdown.clone()));
    kafka::spawn_watch(config.kafka.clone(), topics, kafka_check, shutdown.clone());

    let owner = format!("{} {}", std::process::id(), Uuid::now_v7());
    let store = Store::new(client, owner);
    let log = config.log().context("cannot create a Kafka client")?;
    let dead_letters = DeadLetters::new(&config.kafka, letters, "processor-dead-letters")
        .context("cannot create a Kafka producer")?;
    let deleted_links = DeletedLinks::default();
    tokio::spawn(deleted_links.clone().follow(store.clone(), shutdown.clone()));
    let (topic, limits) = (clicks.clone(), config.batch);
    let (tracer, exporter) = traces::start(&config.traces, "processor")?;
    let tools = Tools { topic, store: store.clone(), dead_letters, deleted_links, limits, tracer };
    let intake_tools = intake::Tools {
        store: store.clone(),
        dead_letters: tools.dead_letters.clone(),
        deleted_links: tools.deleted_links.clone(),
    };
    let lanes = Arc::new(Lanes::new(tools, log.clone()));
    let (upkeep_held, held) = watch::channel(false);
    let turn = Turn::new(held, shutdown.clone());
    let audits = audits(&config, turn.clone());
    let conversions = count_conversions(store.clone(), intake_tools.deleted_links.clone(), turn.clone());
    let upkeep = upkeep(store.clone(), config.upkeep_store(), log.clone(), config.schedule(), turn);
    let upkeep_group = format!("{group}-upkeep");
    let intake = intake::intake(&config.kafka, &upkeep_group, &intake_tools, upkeep_held, &shutdown);

    let _guard = shutdown.track_work("the last inserts and commits");
    let consuming = consume(&config.kafka, &clicks, &group, Arc::clone(&lanes), shutdown.clone());
    // All end when a stop is requested. Consuming ends last, because its lanes finish their inserts.
    tokio::try_join!(
        consuming.map_err(anyhow::Error::from),
        intake.map_err(anyhow::Error::from),
        write_progress(&lanes, &log, &store, &partitions, &shutdown).map(Ok),
        upkeep.map(Ok),
        conversions.map(Ok),
        audits.map(Ok),
    )?;
    exporter.finish(&shutdown).await;
    Ok(())
}
