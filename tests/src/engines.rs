//! Isolated parts of the real engines for one test.

mod create;
mod isolated;
mod statements;
mod urls;

use devstack::clickhouse_cluster::Cluster;
use devstack::{Kind, each_host};
use schemas::topic;
use tracing_subscriber::fmt::TestWriter;

use self::create::{
    add_acls, create_clickhouse, create_postgres, create_topics, migrate_clickhouse, migrate_postgres,
};
pub use self::isolated::Isolated;
pub use self::statements::{clickhouse, http_client};
use self::urls::engine;
pub use self::urls::host_of;

/// Creates isolated parts of the engines that `./dev test` started or that the environment names.
///
/// # Panics
/// When `KAFKA_BROKERS`, `CLICKHOUSE_URL` or `DATABASE_URL` is missing, or an engine rejects a statement or a topic.
pub async fn isolated() -> Isolated {
    let [kafka, clickhouse, postgres] = given();
    isolated_on(&kafka, &clickhouse, &postgres).await
}

/// The same, with a topic of clicks that keeps the producers' times instead of the broker's, and records of any age.
///
/// # Panics
/// As [`isolated`].
pub async fn isolated_with_given_times() -> Isolated {
    migrated(given(), &GIVEN_TIMES).await
}

/// The settings of a topic whose records have their producer's times. Set when the topic is created, because a broker
/// applies a later change only some time after it confirmed it.
const GIVEN_TIMES: [(&str, &str); 2] = [("message.timestamp.type", "CreateTime"), ("retention.ms", "-1")];

/// Creates isolated parts of engines that a test has started.
///
/// # Panics
/// When an engine rejects a statement or a topic.
pub async fn isolated_on(kafka_brokers: &str, clickhouse_url: &str, database_url: &str) -> Isolated {
    migrated([kafka_brokers, clickhouse_url, database_url].map(str::to_owned), &[]).await
}

/// Creates databases with tables, and topics. These settings override those of the topic of clicks.
async fn migrated([kafka, clickhouse, postgres]: [String; 3], click_settings: &[(&str, &str)]) -> Isolated {
    let isolated = empty_on(&kafka, &clickhouse, &postgres).await;
    tokio::join!(
        create_topics(&isolated, topic::CLICKS.partitions, click_settings),
        migrate_clickhouse(&isolated),
        migrate_postgres(&isolated)
    );
    isolated
}

/// The engines that `./dev test` started or that the environment names.
fn given() -> [String; 3] {
    ["KAFKA_BROKERS", "CLICKHOUSE_URL", "DATABASE_URL"].map(engine)
}

/// Logs the warnings of services in the test's own process; the test runner shows them when the test fails. They go to
/// standard error, because the standard output of a benchmark is its result.
fn log_warnings() {
    // Fails when an earlier call has started it.
    let _ = tracing_subscriber::fmt()
        .with_writer(TestWriter::with_stderr)
        .with_env_filter("warn,rdkafka=off")
        .with_ansi(false)
        .try_init();
}

/// Creates databases without tables and no topics, as before the first `api migrate`.
///
/// # Panics
/// When an engine rejects a statement or a topic.
pub async fn empty_on(kafka_brokers: &str, clickhouse_url: &str, database_url: &str) -> Isolated {
    empty_with(kafka_brokers, &each_host(clickhouse_url), database_url).await
}

async fn empty_with(kafka_brokers: &str, clickhouse_urls: &[String], database_url: &str) -> Isolated {
    log_warnings();
    let mut isolated = named(kafka_brokers);
    create_clickhouse(&mut isolated, clickhouse_urls).await;
    let databases = each_host(database_url);
    let (created, ()) = tokio::join!(create_postgres(&databases[0], &isolated), add_acls(&isolated));
    isolated.database_url = created;
    isolated.other_postgres = databases.get(1).map(|standby| host_of(standby));
    isolated
}

/// The same in the engines that `./dev test` started or that the environment names.
///
/// # Panics
/// When a variable is missing, or an engine rejects a statement or a topic.
pub async fn empty() -> Isolated {
    let [kafka, clickhouse, postgres] = given();
    empty_on(&kafka, &clickhouse, &postgres).await
}

/// Creates topics and no databases, which is all that an edge needs.
///
/// # Panics
/// When Kafka rejects it.
pub async fn topics_on(kafka_brokers: &str) -> Isolated {
    let isolated = named(kafka_brokers);
    tokio::join!(add_acls(&isolated), create_topics(&isolated, topic::CLICKS.partitions, &[]));
    isolated
}

/// Creates topics and a ClickHouse database, which is all that a processor needs. The topic of clicks has this many
/// partitions.
///
/// # Panics
/// When an engine rejects a statement or a topic.
pub async fn counting_on(kafka_brokers: &str, clickhouse_url: &str, partitions: i32) -> Isolated {
    counting_with(kafka_brokers, &each_host(clickhouse_url), partitions, &[]).await
}

/// The same on the replicas of a cluster.
///
/// # Panics
/// When an engine rejects a statement or a topic.
pub async fn counting_on_cluster(kafka_brokers: &str, cluster: &Cluster, partitions: i32) -> Isolated {
    counting_with(kafka_brokers, &urls_of(cluster), partitions, &[]).await
}

/// The same, with a topic of clicks whose records have their producer's times.
///
/// # Panics
/// When an engine rejects a statement or a topic.
pub async fn given_times_on_cluster(kafka_brokers: &str, cluster: &Cluster, partitions: i32) -> Isolated {
    counting_with(kafka_brokers, &urls_of(cluster), partitions, &GIVEN_TIMES).await
}

async fn counting_with(
    kafka_brokers: &str,
    clickhouse_urls: &[String],
    partitions: i32,
    click_settings: &[(&str, &str)],
) -> Isolated {
    log_warnings();
    let mut isolated = named(kafka_brokers);
    create_clickhouse(&mut isolated, clickhouse_urls).await;
    let topics = create_topics(&isolated, partitions, click_settings);
    tokio::join!(add_acls(&isolated), topics, migrate_clickhouse(&isolated));
    isolated
}

/// Creates databases without tables and no topics, with ClickHouse's on each replica of a cluster.
///
/// # Panics
/// When an engine rejects a statement or a topic.
pub async fn empty_on_cluster(cluster: &Cluster) -> Isolated {
    let [kafka, _, postgres] = given();
    empty_with(&kafka, &urls_of(cluster), &postgres).await
}

fn urls_of(cluster: &Cluster) -> Vec<String> {
    cluster.shards.iter().flatten().map(|server| server.url().to_owned()).collect()
}

/// The same in the engines that `./dev test` started or that the environment names, with the default number of
/// partitions.
///
/// # Panics
/// When `KAFKA_BROKERS` or `CLICKHOUSE_URL` is missing, or an engine rejects a statement or a topic.
pub async fn counting() -> Isolated {
    let [kafka, clickhouse] = ["KAFKA_BROKERS", "CLICKHOUSE_URL"].map(engine);
    counting_on(&kafka, &clickhouse, topic::CLICKS.partitions).await
}

/// Creates topics and no databases in the Kafka that `./dev test` started or that the environment names.
///
/// # Panics
/// When `KAFKA_BROKERS` is missing, or Kafka rejects it.
pub async fn topics() -> Isolated {
    topics_on(&engine("KAFKA_BROKERS")).await
}

/// Returns a new prefix on this Kafka, without databases.
fn named(kafka_brokers: &str) -> Isolated {
    // `./dev test` sets the second variable for engines that it has started.
    let is_external = Kind::Kafka.external_url().is_some_and(|external| external == kafka_brokers);
    Isolated {
        kafka_brokers: kafka_brokers.to_owned(),
        topic_prefix: format!("t{}.", uuid::Uuid::now_v7().simple()),
        clickhouse_url: String::new(),
        other_clickhouse: Vec::new(),
        database_url: String::new(),
        other_postgres: None,
        has_users: !is_external || std::env::var_os(devstack::USERS_VARIABLE).is_some(),
        databases: Vec::new(),
    }
}
