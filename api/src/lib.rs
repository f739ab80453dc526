//! The management API: links, conversions, webhook endpoints and counts over HTTP, and the operator's commands.

mod account;
mod admin;
mod app;
mod background;
mod config;
mod error;
mod metrics;
mod plan;
mod resources;
mod routes;
mod store;
mod web;

pub use self::metrics::METRICS;
pub use app::CountrySource;
pub use config::{Command, Config};
pub use plan::{Plans, PlansFault};
pub use store::grants::Engine;

use anyhow::Context as _;
use schemas::click_id::ClickIdKeys;
use schemas::topic;
use service::clickhouse::Clickhouse;
use service::destination::DestinationRules;
use service::http::{Limits, serve_with_middleware};
use service::kafka;
use service::metrics::Metrics;
use service::slots::Slots;
use service::{Health, Shutdown};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::account::sessions::password::Hashing;
use crate::account::sessions::setup;
use crate::app::{App, State};
use crate::background::{blocked_hosts, outbox, retention, sweep};
use crate::resources::imports::schedule;
use crate::resources::links::destination::Destinations;
use crate::resources::live::follow::follow;
use crate::resources::live::hub::Hub;
use crate::store::clicks::{ClickStore, follow_replicas};
use crate::store::permits::Permits;
use crate::store::{grants, migrate};
use crate::web::download;
use crate::web::limits::AddressLimits;
use crate::web::middleware::Middleware;

/// Connections of one instance to Postgres.
const POOL_CONNECTIONS: u32 = 16;

/// Serves the API on `listener` and its operations on `operations` until shutdown.
///
/// It starts while engines are down: requests that need one are answered with 503, and `/readyz` names it.
///
/// # Errors
/// When the configuration cannot be used.
pub async fn run(
    config: Config,
    listener: TcpListener,
    operations: TcpListener,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let health = Health::new(&shutdown);
    let pool = service::postgres::pool(&config.postgres, "api", POOL_CONNECTIONS);
    let clickhouse = Clickhouse::new(&config.clickhouse);
    // Registered before the first /readyz: without checks it would be ready.
    let postgres = health.check("postgres");
    // Without Kafka changes wait in the outbox, and without ClickHouse links are answered without counts.
    let (kafka_check, clicks) = (health.informational("kafka"), health.informational("clickhouse"));
    let _operations = service::http::serve_operations(operations, &health, &metrics);
    tokio::spawn(service::postgres::watch(pool.clone(), postgres, shutdown.clone()));
    tokio::spawn(service::clickhouse::watch(clickhouse.clone(), clicks, shutdown.clone()));
    let topics = [topic::LINKS, topic::LINK_EVENTS, topic::CONVERSIONS, topic::CLICKS];
    let topics = topics.map(|topic| config.kafka.topic(topic.name)).to_vec();
    kafka::spawn_watch(config.kafka.clone(), topics, kafka_check, shutdown.clone());
    let outbox = tokio::spawn(outbox::publish(pool.clone(), config.kafka.clone(), shutdown.clone()));
    tokio::spawn(outbox::measure(pool.clone(), shutdown.clone()));

    let app = app(&config, pool.clone(), &clickhouse, &shutdown)?;
    follow(&config.kafka, app.live.clone(), shutdown.clone())?;
    let daily = retention::write_daily(pool.clone(), clickhouse, app.plans.clone(), shutdown.clone());
    tokio::spawn(daily);
    tokio::spawn(blocked_hosts::follow(app.clone(), shutdown.clone()));
    tokio::spawn(sweep::sweep(app.clone()));
    tokio::spawn(follow_replicas(app.clone(), shutdown.clone()));
    tokio::spawn(schedule::run_imports(app.clone()));
    tokio::spawn(setup::announce(app.clone(), shutdown.clone()));
    let limits = Limits { proxies: config.trusted_proxies.clone(), ..config.limits };
    let middleware =
        Middleware(AddressLimits::new(config.address_requests_per_minute, config.trusted_proxies));
    serve_with_middleware(middleware, listener, routes::routes(&app), limits, shutdown.clone()).await;
    // All requests are finished. What is left in the outbox is sent at the next start.
    outbox.await.context("the outbox publisher panicked")?;
    pool.close().await;
    Ok(())
}

/// Creates the state for requests and operators' commands.
fn app(config: &Config, pool: PgPool, clickhouse: &Clickhouse, shutdown: &Shutdown) -> anyhow::Result<App> {
    let plans = match &config.plans {
        Some(plans) => plans.clone(),
        None => Plans::built_in()?,
    };
    Ok(App::new(State {
        pool,
        clicks: ClickStore::new(
            clickhouse,
            config.queries_per_workspace.get(),
            config.counters_timeout,
            config.stats_timeout,
        ),
        plans,
        click_ids: click_id_keys(config),
        secret_keys: config.secret_keys.clone(),
        webhook_rules: DestinationRules::new(config.webhook_allow.clone(), Some(&config.public_url)),
        destinations: Destinations::new(config.public_url.clone()),
        public_url: config.public_url.clone(),
        dashboard_url: config.dashboard_url.clone(),
        country_source: config.country_source(),
        hashing: Hashing::default(),
        live: Hub::new(config.limits.max_connections),
        searches: Permits::new(1, 4),
        exports: Slots::new(download::MOST_EXPORTS),
        imports: Notify::new(),
        shutdown: shutdown.clone(),
    }))
}

/// Creates or updates the schemas and topics that this build needs; `api migrate`. When asked to, it gives the users
/// their rights in Kafka, recreates a replica of ClickHouse, by its host and port, and increases the partitions of
/// topic `clicks`.
///
/// # Errors
/// When an engine cannot be reached or refuses a statement.
pub async fn migrate(
    config: &Config,
    adds_acls: bool,
    partitions: Option<u16>,
    replaced: Option<&str>,
) -> anyhow::Result<()> {
    let pool = service::postgres::migration_pool(&config.postgres, "api").await;
    let clickhouse = Clickhouse::new(&config.clickhouse);
    migrate::migrate(&pool, &clickhouse, &config.kafka, partitions, replaced).await?;
    if adds_acls {
        store::grants::add_acls(&config.kafka).await?;
    }
    Ok(())
}

/// Returns what [`migrate`] would change; `api migrate --plan`.
///
/// # Errors
/// When an engine cannot be reached.
pub async fn plan_migration(config: &Config) -> anyhow::Result<String> {
    let pool = service::postgres::command_pool(&config.postgres, "api").await;
    let clickhouse = Clickhouse::new(&config.clickhouse);
    migrate::plan(&pool, &clickhouse, &config.kafka).await
}

/// Returns the least privileges of each program's user on one engine or on all; `api migrate --print-grants`.
#[must_use]
pub fn grants(config: &Config, engine: Option<Engine>) -> String {
    let clickhouse = &config.clickhouse;
    grants::print(engine, clickhouse.url.database(), clickhouse.cluster.is_some(), &config.kafka.topic(""))
}

/// Runs an operator's command and returns what to print; `api admin …`.
///
/// # Errors
/// When Postgres cannot be reached, or the command names something that does not exist.
pub async fn administer(config: &Config, admin: Admin) -> anyhow::Result<String> {
    let pool = service::postgres::command_pool(&config.postgres, "api").await;
    let clickhouse = Clickhouse::new(&config.clickhouse);
    clickhouse.choose_working().await;
    // A command ends by itself.
    let shutdown = Shutdown::new(std::time::Duration::ZERO);
    admin::run(admin, &app(config, pool, &clickhouse, &shutdown)?, &clickhouse).await
}

pub use admin::Admin;
pub use web::operation::Access;

/// Lists the operations below `/app/api`: method, path with names in braces, who may call.
pub fn dashboard_operations() -> Vec<(http::Method, String, Access)> {
    let in_workspace = routes::of_workspace().into_iter().chain(routes::of_members());
    let in_workspace =
        in_workspace.map(|row| (row.method, format!("workspaces/{{workspace}}/{}", row.path), row.access));
    let of_sessions =
        routes::of_sessions().into_iter().map(|row| (row.method, row.path.to_owned(), row.access));
    in_workspace.chain(of_sessions).collect()
}

fn click_id_keys(config: &Config) -> ClickIdKeys {
    let (id, key) = config.click_id_keys.current();
    let former = config.click_id_keys.iter().skip(1).map(|(id, key)| (id, *key.bytes()));
    ClickIdKeys::new((id, *key.bytes()), former)
}
