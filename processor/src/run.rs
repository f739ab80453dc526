//! The processor, from its configuration to its end.

use std::pin::pin;
use std::sync::Arc;

use anyhow::Context as _;
use schemas::topic;
use service::clickhouse::client;
use service::http::serve_operations;
use service::metrics::Metrics;
use service::{Health, Shutdown, clickhouse, kafka};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::Config;
use crate::consume::consume;
use crate::dead_letter::DeadLetters;
use crate::lane::Tools;
use crate::lanes::Lanes;
use crate::log::Log;
use crate::progress::write_progress;
use crate::store::Store;

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
    let topics = vec![clicks.clone(), config.kafka.topic(topic::DEAD_LETTERS.name)];
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
    let log = Log::new(&config.kafka, &clicks, &group).context("cannot make a client of Kafka")?;
    let dead_letters = DeadLetters::new(&config.kafka).context("cannot make a producer of Kafka")?;
    let tools = Tools { store: store.clone(), dead_letters, limits: config.batch };
    let lanes = Arc::new(Lanes::new(tools, log.clone()));

    let _hold = shutdown.hold("the last inserts and commits");
    let mut consuming = pin!(consume(&config.kafka, &clicks, &group, Arc::clone(&lanes), shutdown.clone()));
    let consumed = tokio::select! {
        consumed = &mut consuming => consumed,
        // It ends first when a stop is requested; the lanes still have inserts to finish.
        () = write_progress(&lanes, &log, &store, &partitions, &shutdown) => consuming.await,
    };
    Ok(consumed?)
}
