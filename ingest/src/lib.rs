//! The redirect edge: answers short links from memory and publishes their clicks.
//!
//! A redirect needs no other process. The edge reads links from the compacted topic `links` ([`links`]), writes a click
//! to the local disk before it answers the visitor ([`spool`]), and publishes it to topic `clicks` ([`publish`]).

pub mod click;
pub mod client_limit;
pub mod config;
pub mod country;
pub mod destination;
pub mod edge_clicks;
pub mod intake;
pub mod links;
mod metrics;
pub mod publish;
pub mod redirect;
pub mod spool;
pub mod visitor;

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use schemas::click_id::ClickIdKeys;
use schemas::topic;
use service::agent::Agents;
use service::config::{Fault, Faults};
use service::http::Limits;
use service::http::route::any_of;
use service::metrics::Metrics;
use service::{Check, Health, Shutdown, traces};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

pub use self::config::Config;
pub use self::metrics::METRICS;
use crate::click::Clicks;
use crate::client_limit::ClientLimit;
use crate::country::{Countries, CountryFile};
use crate::edge_clicks::EdgeClicks;
use crate::intake::Intake;
use crate::links::lookup::Lookup;
use crate::links::{Links, follow, snapshot};
use crate::publish::{Partitions, Publisher};
use crate::redirect::{Counts, Edge, MoveHeaders};
use crate::spool::{OpenError, Spool, UnrecognizedFile};
use crate::visitor::VisitorKey;

/// How long before the shutdown deadline publishing stops, which leaves time to close the producer.
const CLOSING: Duration = Duration::from_millis(1_500);

/// The snapshot's default name in the spool's directory.
const SNAPSHOT: &str = "links.snapshot";

/// How long publishing continues after a stop is requested. The spool keeps the remaining clicks.
const FLUSH: Duration = Duration::from_secs(10);

/// Runs the edge until a stop is requested: visitors on `listener`, operators on `operations`.
///
/// # Errors
/// When the spool cannot be used, the Kafka settings are invalid, or a thread cannot be started or panics.
pub async fn run(
    config: Config,
    listener: TcpListener,
    operations: TcpListener,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let health = Health::new(&shutdown);
    // All checks exist before readiness is served: without checks the edge would be ready.
    let (spool_check, links_check) = (health.check("spool"), health.check("links"));
    // Without Kafka the edge redirects and stores clicks.
    let kafka_check = health.informational("kafka");
    let (agents_check, countries_check) = (health.check("agents"), health.check("countries"));
    let _operations = service::http::serve_operations(operations, &health, &metrics);

    let (directory, max_bytes) = (config.spool_dir.clone(), config.spool_max_bytes);
    let spool = spawn_blocking(move || Spool::open(&directory, max_bytes))
        .await
        .context("opening the spool panicked")?;
    let spool = Arc::new(spool.map_err(open_error)?);
    for UnrecognizedFile { path, reason, .. } in spool.unrecognized() {
        let path = path.display();
        tracing::error!(%path, "ignored the file {path} in the spool: {reason}");
    }
    let segments = spool.segments().len();
    if segments > 0 {
        tracing::info!(
            segments,
            "sending the unconfirmed clicks of {segments} segments of an earlier process"
        );
    }

    let watched = [topic::CLICKS.name, topic::LINKS.name].map(|name| config.kafka.topic(name)).to_vec();
    let (watch_config, watch_check, watch_shutdown) =
        (config.kafka.clone(), kafka_check.clone(), shutdown.clone());
    let kafka_watch = tokio::spawn(async move {
        service::kafka::watch(&watch_config, watched, watch_check, watch_shutdown).await
    });

    let partitions = Arc::new(Partitions::default());
    let (tracer, exporter) = traces::start(&config.traces, "ingest")?;
    let publisher = Publisher::start(
        &config.kafka,
        Arc::clone(&spool),
        Arc::clone(&partitions),
        kafka_check,
        tracer.clone(),
    )?;
    let intake = Arc::new(Intake::new(spool, Arc::clone(&partitions), spool_check));
    let sync_thread = intake.start_sync(Duration::from_millis(config.spool_sync_milliseconds.into()))?;
    let links = Links::default();
    let snapshot_file = config.snapshot_file.clone().unwrap_or_else(|| config.spool_dir.join(SNAPSHOT));
    let links_topic = config.kafka.topic(topic::LINKS.name);
    let (file, name, served) = (snapshot_file.clone(), links_topic.clone(), links.clone());
    // Before the first request, which must find every known link.
    let loaded_snapshot = spawn_blocking(move || snapshot::load(&file, &name, &served))
        .await
        .context("loading the link snapshot panicked")?;
    let follower = follow::start(&config.kafka, &links, loaded_snapshot, links_check)?;
    let snapshot_writer =
        snapshot::start(links.clone(), snapshot_file, links_topic, config.snapshot_interval)?;

    let data_dir = config.data_dir.clone();
    let agents = spawn_blocking(move || agents(data_dir.as_deref(), &agents_check))
        .await
        .context("loading the lists of agents panicked")?;
    let countries = countries(&config, countries_check, &shutdown).await?;

    let lookup = config.lookup_database.clone().map(|url| Lookup::new(url, links.clone()));
    let edge = Arc::new(Edge {
        links,
        lookup,
        intake,
        click_ids: click_ids(&config),
        clicks: Clicks {
            agents,
            countries,
            visitors: VisitorKey::new(config.visitor_key.bytes(), config.visitor_key_rotation),
            respect_privacy_signals: config.respect_privacy_signals,
        },
        client_limit: ClientLimit::new(config.clicks_per_minute),
        trusted_proxies: config.trusted_proxies.clone(),
        counts: Counts::default(),
        tracer,
    });
    let edge_clicks = Arc::new(EdgeClicks::new(&edge, config.click_id_key_since, &config.kafka, partitions)?);
    // Redirects first, because they must be fast.
    let routes = any_of([redirect::routes(&edge), edge_clicks::route(&edge_clicks)]);
    let limits = Limits { proxies: config.trusted_proxies.clone(), ..config.limits };
    service::http::serve_with_middleware(MoveHeaders, listener, routes, limits, shutdown.clone()).await;

    let _guard = shutdown.track_work("publishing clicks");
    drop(follower);
    let deadline = flush_deadline(&shutdown);
    spawn_blocking(move || {
        // Blocks: dropping the producer waits for librdkafka's threads.
        drop(edge_clicks);
        sync_thread.finish();
        // Concurrently, so that each has the time until the deadline.
        thread::scope(|scope| {
            scope.spawn(|| snapshot_writer.finish(deadline));
            publisher.finish(deadline);
        });
    })
    .await
    .context("closing the spool panicked")?;
    exporter.finish(&shutdown).await;
    kafka_watch.await.context("watching Kafka panicked")?.context("cannot use the Kafka settings")?;
    Ok(())
}

/// Returns when publishing stops at the latest.
fn flush_deadline(shutdown: &Shutdown) -> Instant {
    let now = Instant::now();
    let left = shutdown
        .deadline()
        .map_or(FLUSH, |deadline| deadline.into_std().saturating_duration_since(now).saturating_sub(CLOSING));
    now + left.min(FLUSH)
}

/// Loads the lists of User-Agents from the directory, or uses the built-in ones.
fn agents(data_dir: Option<&Path>, check: &Check) -> Agents {
    let agents = match data_dir.map(Agents::load) {
        Some(Ok(agents)) => agents,
        Some(Err(error)) => {
            let error = anyhow::Error::new(error);
            tracing::error!("only the common crawlers and browsers are known: {error:#}");
            let agents = Agents::built_in();
            check.ready_with(format!("{agents}: {error:#}"));
            return agents;
        }
        None => {
            tracing::warn!("only the common crawlers and browsers are known: HOPLINE_DATA_DIR is not set");
            Agents::built_in()
        }
    };
    check.ready_with(agents.to_string());
    agents
}

/// Loads the country file, if one is configured, and reloads it whenever it changes.
async fn countries(config: &Config, check: Check, shutdown: &Shutdown) -> anyhow::Result<Countries> {
    let in_data_dir = || config.data_dir.as_ref().map(|directory| directory.join(country::FILE));
    let Some(path) = config.country_file.clone().or_else(in_data_dir) else {
        tracing::warn!("clicks have no country: neither HOPLINE_COUNTRY_FILE nor HOPLINE_DATA_DIR is set");
        check.ready_with("clicks have no country: no file is configured");
        return Ok(Countries::default());
    };
    let mut file = CountryFile::new(path, check);
    let file = spawn_blocking(move || {
        file.reload_if_changed();
        file
    })
    .await
    .context("reading the country file panicked")?;
    let countries = file.countries();
    tokio::spawn(file.watch(shutdown.clone()));
    Ok(countries)
}

fn click_ids(config: &Config) -> ClickIdKeys {
    let (id, key) = config.click_id_keys.current();
    let others = config.click_id_keys.iter().skip(1).map(|(id, key)| (id, *key.bytes()));
    ClickIdKeys::new((id, *key.bytes()), others)
}

/// Reports an unusable directory as a configuration fault, and one in use by another process as an ordinary error.
fn open_error(error: OpenError) -> anyhow::Error {
    const VARIABLE: &str = "HOPLINE_SPOOL_DIR";
    match &error {
        OpenError::InUse(_) => anyhow::Error::new(error).context(VARIABLE),
        OpenError::Io { path, source } => {
            Faults::from(Fault::new(VARIABLE, format!("cannot use {}: {source}", path.display()))).into()
        }
    }
}
