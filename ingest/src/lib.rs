//! The redirect edge: answers short links from memory and publishes their clicks.
//!
//! A redirect needs no other process. Links come from the compacted topic `links` ([`links`]); a click is on the
//! local disk before its visitor is answered ([`spool`]) and goes to topic `clicks` from there ([`publish`]).

pub mod click;
pub mod config;
pub mod country;
pub mod edge_clicks;
pub mod intake;
pub mod links;
pub mod publish;
pub mod redirect;
pub mod spool;
pub mod visitor;

use std::{
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
pub use config::Config;
use schemas::{click_id::ClickIdKeys, topic};
use service::{
    Check, Health, Shutdown,
    agent::Agents,
    config::{Fault, Faults},
    http::route::any_of,
    metrics::Metrics,
};
use tokio::{net::TcpListener, task::spawn_blocking};

use crate::{
    click::Clicks,
    country::{Countries, CountryFile},
    edge_clicks::EdgeClicks,
    intake::Intake,
    links::{Links, follow, look_up::LookUp, snapshot},
    publish::{Partitions, Publisher},
    redirect::{Counts, Edge, HandOver},
    spool::{LeftAlone, OpenError, Spool},
    visitor::VisitorKey,
};

/// How long before the shutdown deadline publishing ends, so that the producer can be closed within it.
const CLOSING: Duration = Duration::from_millis(1_500);

/// The snapshot's name in the spool's directory, where no other place is set.
const SNAPSHOT: &str = "links.snapshot";

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
    let (told_by, places) = (health.check("agents"), health.check("countries"));
    let _operations = service::http::serve_operations(operations, &health, &metrics);

    let (directory, max_bytes) = (config.spool_dir.clone(), config.spool_max_bytes);
    let spool = spawn_blocking(move || Spool::open(&directory, max_bytes))
        .await
        .context("opening the spool panicked")?;
    let spool = Arc::new(spool.map_err(unusable)?);
    for LeftAlone { path, reason, .. } in spool.left_alone() {
        let path = path.display();
        tracing::error!(%path, "left alone {path} in the spool: {reason}");
    }
    let left_behind = spool.segments().len();
    if left_behind > 0 {
        tracing::info!(
            left_behind,
            "sending what is not confirmed of {left_behind} segments that were left in the spool"
        );
    }

    let watched = [topic::CLICKS.name, topic::LINKS.name].map(|name| config.kafka.topic(name)).to_vec();
    let (watch_config, watch_check, watch_shutdown) = (config.kafka.clone(), kafka.clone(), shutdown.clone());
    let kafka_watch = tokio::spawn(async move {
        service::kafka::watch(&watch_config, watched, watch_check, watch_shutdown).await
    });

    let partitions = Arc::new(Partitions::default());
    let publisher = Publisher::start(&config.kafka, Arc::clone(&spool), Arc::clone(&partitions), kafka)?;
    let intake = Arc::new(Intake::new(spool, Arc::clone(&partitions), kept));
    let intake_watch = intake.watch(Duration::from_millis(config.spool_sync_milliseconds.into()))?;
    let links = Links::default();
    let snapshot_file = config.snapshot_file.clone().unwrap_or_else(|| config.spool_dir.join(SNAPSHOT));
    let links_topic = config.kafka.topic(topic::LINKS.name);
    let (file, name, served) = (snapshot_file.clone(), links_topic.clone(), links.clone());
    // Before anyone is served: a known link must redirect from the first request on.
    let stand_in = spawn_blocking(move || snapshot::load(&file, &name, &served))
        .await
        .context("loading the snapshot of links panicked")?;
    let follower = follow::start(&config.kafka, &links, stand_in, loaded)?;
    let keeper = snapshot::keep(links.clone(), snapshot_file, links_topic, config.snapshot_interval)?;

    let data_dir = config.data_dir.clone();
    let agents = spawn_blocking(move || agents(data_dir.as_deref(), &told_by))
        .await
        .context("loading the lists of agents panicked")?;
    let countries = countries(&config, places, &shutdown).await?;

    let look_up = config.lookup_database.clone().map(|url| LookUp::new(url, links.clone()));
    let edge = Arc::new(Edge {
        links,
        look_up,
        intake,
        click_ids: click_ids(&config),
        clicks: Clicks {
            agents,
            countries,
            visitors: VisitorKey::new(config.visitor_key.bytes(), config.visitor_key_rotation),
            respect_privacy_signals: config.respect_privacy_signals,
        },
        trusted_proxies: config.trusted_proxies.clone(),
        counts: Counts::default(),
    });
    let edge_clicks = Arc::new(EdgeClicks::new(&edge, config.click_id_key_since, &config.kafka, partitions)?);
    // Redirects first: they are what has to be fast.
    let routes = any_of([redirect::routes(&edge), edge_clicks::route(&edge_clicks)]);
    service::http::serve_around(HandOver, listener, routes, config.limits, shutdown.clone()).await;

    let _hold = shutdown.hold("publishing clicks");
    drop(follower);
    let deadline = flush_deadline(&shutdown);
    spawn_blocking(move || {
        // Closing its producer waits for librdkafka's threads.
        drop(edge_clicks);
        intake_watch.finish();
        // Side by side: neither is to take the other's time.
        thread::scope(|scope| {
            scope.spawn(|| keeper.finish(deadline));
            publisher.finish(deadline);
        });
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

/// Loads what tells people from programs: the lists of the directory, or what is built in.
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

/// Loads the file of countries, if one is configured, and reads it again whenever it changes.
async fn countries(config: &Config, check: Check, shutdown: &Shutdown) -> anyhow::Result<Countries> {
    let in_data_dir = || config.data_dir.as_ref().map(|directory| directory.join(country::FILE));
    let Some(path) = config.country_file.clone().or_else(in_data_dir) else {
        tracing::warn!("clicks have no country: neither HOPLINE_COUNTRY_FILE nor HOPLINE_DATA_DIR is set");
        check.ready_with("clicks have no country: no file is configured");
        return Ok(Countries::default());
    };
    let mut file = CountryFile::new(path, check);
    let file = spawn_blocking(move || {
        file.look();
        file
    })
    .await
    .context("reading the country file panicked")?;
    let countries = file.countries();
    tokio::spawn(file.follow(shutdown.clone()));
    Ok(countries)
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
