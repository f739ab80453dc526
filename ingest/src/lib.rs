//! The redirect edge: answers short links from memory and publishes their clicks.
//!
//! A redirect needs no other process. Links come from the compacted topic `links` ([`links`]); a click is on the
//! local disk before its visitor is answered ([`spool`]) and goes to topic `clicks` from there ([`publish`]).

pub mod agent;
pub mod click;
pub mod config;
pub mod intake;
pub mod links;
pub mod publish;
pub mod redirect;
pub mod spool;
pub mod visitor;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
pub use config::Config;
use schemas::{click_id::ClickIdKeys, topic};
use service::{
    Health, Shutdown,
    config::{Fault, Faults},
    metrics::Metrics,
};
use tokio::{net::TcpListener, task::spawn_blocking};

use crate::{
    intake::Intake,
    links::{Links, follow},
    publish::{Partitions, Publisher},
    redirect::{Counts, Edge},
    spool::{OpenError, Spool},
    visitor::VisitorKey,
};

/// How long before the shutdown deadline publishing ends, so that the producer can be closed within it.
const CLOSING: Duration = Duration::from_millis(1_500);

/// How long publishing goes on at most after a stop is requested; the spool keeps what is left.
const FLUSH: Duration = Duration::from_secs(10);

/// Runs the edge until a stop is requested: visitors on `listener`, operators on `operations`.
///
/// # Errors
/// When the spool cannot be used, or the settings of Kafka are refused. Afterwards nothing makes it fail.
pub async fn run(
    config: Config,
    listener: TcpListener,
    operations: TcpListener,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let health = Health::new(&shutdown);
    // Before anyone can ask, or an edge without checks would say that it is ready.
    let (kafka, kept, loaded) = (health.check("kafka"), health.check("spool"), health.check("links"));
    let _operations = service::http::serve_operations(operations, &health, &metrics);

    let directory = config.spool_dir.clone();
    let spool =
        spawn_blocking(move || Spool::open(&directory)).await.context("opening the spool panicked")?;
    let spool = Arc::new(spool.map_err(unusable)?);
    let left_behind = spool.segments().len();
    if left_behind > 0 {
        tracing::info!(left_behind, "sending {left_behind} segments again that were left in the spool");
    }

    let watched = [topic::CLICKS.name, topic::LINKS.name].map(|name| config.kafka.topic(name)).to_vec();
    let (watch_config, watch_check, watch_shutdown) = (config.kafka.clone(), kafka.clone(), shutdown.clone());
    let kafka_watch = tokio::spawn(async move {
        service::kafka::watch(&watch_config, watched, watch_check, watch_shutdown).await
    });

    let partitions = Arc::new(Partitions::default());
    let publisher = Publisher::start(&config.kafka, Arc::clone(&spool), Arc::clone(&partitions), kafka)?;
    let intake = Arc::new(Intake::new(spool, partitions, kept));
    let intake_watch = intake.watch()?;
    let (links, writer) = Links::new();
    let follower = follow::start(&config.kafka, writer, loaded)?;

    let edge = Arc::new(Edge {
        links,
        intake,
        click_ids: click_ids(&config),
        visitors: VisitorKey::new(config.visitor_key.bytes()),
        trusted_proxies: config.trusted_proxies.clone(),
        counts: Counts::default(),
    });
    service::http::serve(listener, redirect::routes(&edge), config.limits, shutdown.clone()).await;

    let _hold = shutdown.hold("publishing clicks");
    drop(follower);
    let deadline = flush_deadline(&shutdown);
    spawn_blocking(move || {
        intake_watch.finish();
        publisher.finish(deadline);
    })
    .await
    .context("closing the spool panicked")?;
    kafka_watch.await.context("watching Kafka panicked")?.context("cannot use the Kafka settings")?;
    Ok(())
}

/// Returns until when clicks are still published.
fn flush_deadline(shutdown: &Shutdown) -> Instant {
    let now = Instant::now();
    let left = shutdown
        .deadline()
        .map_or(FLUSH, |deadline| deadline.into_std().saturating_duration_since(now).saturating_sub(CLOSING));
    now + left.min(FLUSH)
}

fn click_ids(config: &Config) -> ClickIdKeys {
    let (id, key) = config.click_id_keys.current();
    let former = config.click_id_keys.iter().skip(1).map(|(id, key)| (id, *key.bytes()));
    ClickIdKeys::new((id, *key.bytes()), former)
}

/// Tells a directory that can never work from one that another process uses for now.
fn unusable(error: OpenError) -> anyhow::Error {
    const VARIABLE: &str = "HOPLINE_SPOOL_DIR";
    match &error {
        OpenError::InUse(_) => anyhow::Error::new(error).context(VARIABLE),
        OpenError::Io { path, source } => {
            Faults::from(Fault::new(VARIABLE, format!("cannot use {}: {source}", path.display()))).into()
        }
    }
}
