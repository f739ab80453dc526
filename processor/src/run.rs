//! The processor, from its configuration to its end.

use std::sync::Arc;

use anyhow::Context as _;
use futures_util::{FutureExt as _, TryFutureExt as _};
use schemas::topic;
use service::clickhouse::client;
use service::http::serve_operations;
use service::kafka::{self, DeadLetters};
use service::metrics::Metrics;
use service::{Health, Shutdown, clickhouse};
use tokio::net::TcpListener;
use tokio::sync::watch;
use uuid::Uuid;

use crate::Config;
use crate::clickhouse::Store;
use crate::pipeline::consume::consume;
use crate::pipeline::deleted_links::DeletedLinks;
use crate::pipeline::intake;
use crate::pipeline::lane::Tools;
use crate::pipeline::lanes::Lanes;
use crate::pipeline::progress::write_progress;
use crate::upkeep::upkeep;

/// Runs the processor until the stop is requested and its inserts in flight are finished.
///
/// It starts with its engines down, and waits for them.
///
/// # Errors
/// When a client cannot be made of the configuration, or consuming fails for good.
pub async fn run(
    config: Config,
    operations: TcpListener,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let health = Health::new(&shutdown);
    // Every check is named before the first /readyz is answered: none yet would mean ready.
    let partitions = health.check("partitions");
    let (clickhouse_check, kafka_check) = (health.check("clickhouse"), health.check("kafka"));
    let _operations = serve_operations(operations, &health, &metrics);

    let clicks = config.kafka.topic(topic::CLICKS.name);
    let group = config.kafka.topic(config.group);
    let letters = config.kafka.topic(topic::DEAD_LETTERS.name);
    let topics = vec![clicks.clone(), letters.clone()];
    let client = client(&config.clickhouse);
    tokio::spawn(clickhouse::watch(client.clone(), clickhouse_check, shutdown.clone()));
    tokio::spawn({
        let (kafka, shutdown) = (config.kafka.clone(), shutdown.clone());
        async move {
            if let Err(error) = kafka::watch(&kafka, topics, kafka_check, shutdown).await {
                tracing::error!(%error, "cannot probe Kafka: {error}");
            }
        }
    });

    let owner = format!("{} {}", std::process::id(), Uuid::now_v7());
    let store = Store::new(client, owner);
    let log = config.log().context("cannot make a client of Kafka")?;
    let dead_letters = DeadLetters::new(&config.kafka, letters, "processor-dead-letters")
        .context("cannot make a producer of Kafka")?;
    let deleted_links = DeletedLinks::default();
    tokio::spawn(deleted_links.clone().follow(store.clone(), shutdown.clone()));
    let (topic, limits) = (clicks.clone(), config.batch);
    let tools = Tools { topic, store: store.clone(), dead_letters, deleted_links, limits };
    let intake_tools = intake::Tools {
        store: store.clone(),
        dead_letters: tools.dead_letters.clone(),
        deleted_links: tools.deleted_links.clone(),
    };
    let lanes = Arc::new(Lanes::new(tools, log.clone()));
    let (upkeep_held, held) = watch::channel(false);
    let upkeep =
        upkeep(store.clone(), config.tables(), log.clone(), config.schedule(), held, shutdown.clone());
    let upkeep_group = format!("{group}-upkeep");
    let taking_in = intake::intake(&config.kafka, &upkeep_group, &intake_tools, upkeep_held, &shutdown);

    let _guard = shutdown.track_work("the last inserts and commits");
    let consuming = consume(&config.kafka, &clicks, &group, Arc::clone(&lanes), shutdown.clone());
    // All of them end when a stop is requested, the consuming last: its lanes have inserts to finish.
    tokio::try_join!(
        consuming.map_err(anyhow::Error::from),
        taking_in.map_err(anyhow::Error::from),
        write_progress(&lanes, &log, &store, &partitions, &shutdown).map(Ok),
        upkeep.map(Ok),
    )?;
    Ok(())
}
