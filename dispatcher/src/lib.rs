//! Fans events out to webhook endpoints, signs and delivers them.
//!
//! | Step | Module |
//! |---|---|
//! | clicks and link events, matched with endpoints, into the queue | `enqueue` |
//! | whose they are, also after a dispatcher has died | `leases` |
//! | sent when it is their turn, and tried again | `deliver` |
//! | what is too old, removed | `cleaning` |
//! | every statement | `store` |
//! | spans | `trace` |
//!
//! Every event is delivered at least once, always with the same id and body: each step can be repeated from what the
//! previous step stored. A receiver gets a repeat only if this process is killed, hangs, or loses Postgres after a
//! request was sent and before its outcome was written; and if a click is sent again after its delivery has ended.

mod attempt;
mod cleaning;
mod config;
mod deliver;
mod enqueue;
mod leases;
mod metrics;
mod store;
mod trace;

pub use self::metrics::METRICS;
pub use config::{Config, Tuning};

use anyhow::Context as _;
use schemas::topic;
use service::destination::DestinationRules;
use service::metrics::Metrics;
use service::{Health, Shutdown, process, traces};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::deliver::{Guard, Sender};
use crate::leases::handover::Handover;
use crate::store::Limits;

/// Connections of one process to Postgres.
const POOL_CONNECTIONS: u32 = 8;

/// Runs the dispatcher until shutdown.
///
/// It also starts while an engine is unreachable: `/readyz` on `operations` names it, and work begins as soon as it is
/// available. Dropping the future stops everything immediately, as a kill would.
///
/// # Errors
/// When the configuration is invalid, or on a bug.
pub async fn run(
    config: Config,
    operations: TcpListener,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    process::install_crypto();
    let health = Health::new(&shutdown);
    // All checks are registered before the first request to /readyz, which without checks would report ready.
    let (postgres, kafka_check) = (health.check("postgres"), health.check("kafka"));
    let enqueueing = health.check("enqueue");
    let _operations = service::http::serve_operations(operations, &health, &metrics);
    let pool = service::postgres::pool(&config.postgres, "dispatcher", POOL_CONNECTIONS);
    // The queue may be empty and have 100,000 rows a moment later. A cached plan for the empty table would scan all
    // rows for each batch.
    let options = pool.connect_options().as_ref().clone();
    pool.set_connect_options(options.options([("plan_cache_mode", "force_custom_plan")]));
    let rules = DestinationRules::new(config.webhook_allow, Some(&config.public_url))
        .with_denied_addresses(deliver::interface_addresses());
    let guard = Guard::new(rules).context("cannot set up the client of webhook endpoints")?;
    let (tracer, exporter) = traces::start(&config.traces, "dispatcher")?;
    let sender = Sender::new(guard, config.secret_keys, config.tuning.attempt_deadline, tracer.clone());
    let (handover, incoming) = Handover::new();
    let (numbered, number) = watch::channel(None);

    // Dropping the set aborts its tasks.
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let (watched, stop) = (pool.clone(), shutdown.clone());
    tasks.spawn(async move {
        service::postgres::watch(watched, postgres, stop).await;
        Ok(())
    });
    let (kafka, stop) = (config.kafka.clone(), shutdown.clone());
    tasks.spawn(async move {
        let topics = [topic::CLICKS, topic::LINK_EVENTS, topic::DEAD_LETTERS];
        let topics = topics.map(|topic| kafka.topic(topic.name)).to_vec();
        service::kafka::watch(&kafka, topics, kafka_check, stop).await.context("cannot watch Kafka")
    });
    let (kafka, into, stop) = (config.kafka, pool.clone(), shutdown.clone());
    tasks.spawn(async move {
        enqueue::enqueue(kafka, into, handover, enqueueing, tracer, stop).await.context("cannot read events")
    });
    let present = pool.clone();
    tasks.spawn(async move {
        leases::watch_over(present, numbered).await;
        Ok(())
    });
    let (cleaned, stop) = (pool.clone(), shutdown.clone());
    let limits =
        Limits { queue: config.webhook_queue_limit.into(), failures: config.webhook_failure_limit.into() };
    tasks.spawn(async move {
        cleaning::clean(cleaned, limits, stop).await;
        Ok(())
    });
    let stop = shutdown.clone();
    tasks.spawn(async move {
        deliver::deliver(sender, config.tuning, pool, incoming, number, stop).await;
        Ok(())
    });
    while let Some(ended) = tasks.join_next().await {
        ended.context("a part of the dispatcher panicked")??;
    }
    exporter.finish(&shutdown).await;
    Ok(())
}
