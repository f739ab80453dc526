//! Isolated parts of the real engines for one test.

use std::net::SocketAddr;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use reqwest::Url;
use schemas::clickhouse::MIGRATIONS;
use schemas::topic;
use sqlx::{Connection as _, Executor as _, PgConnection};

/// A topic prefix, a ClickHouse database and a Postgres database that no other test uses, with topics created and
/// migrations applied.
///
/// They are not removed when the test ends, because `./dev test` deletes the engines.
#[derive(Debug, Clone)]
pub struct Isolated {
    /// For `KAFKA_BROKERS`.
    pub kafka_brokers: String,
    /// For `HOPLINE_TOPIC_PREFIX`; ends in a dot.
    pub topic_prefix: String,
    /// For `CLICKHOUSE_URL`: with the test's own database.
    pub clickhouse_url: String,
    /// For `DATABASE_URL`: the test's own database.
    pub database_url: String,
}

impl Isolated {
    /// Returns the topic's name with this test's prefix.
    pub fn topic(&self, topic: topic::Topic) -> String {
        format!("{}{}", self.topic_prefix, topic.name)
    }

    /// Returns the configuration of a Kafka client.
    pub fn kafka(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.kafka_brokers);
        config
    }

    /// Returns host and port of ClickHouse.
    pub(crate) fn clickhouse_host(&self) -> String {
        let url = Url::parse(&self.clickhouse_url).unwrap();
        format!("{}:{}", url.host_str().unwrap(), url.port_or_known_default().unwrap())
    }

    /// Returns the same engines, with ClickHouse at another address.
    ///
    /// # Panics
    /// When the URL of ClickHouse is not one.
    #[must_use]
    pub fn with_clickhouse_at(&self, address: SocketAddr) -> Self {
        let mut url = Url::parse(&self.clickhouse_url).unwrap();
        url.set_ip_host(address.ip()).unwrap();
        url.set_port(Some(address.port())).unwrap();
        Self { clickhouse_url: url.into(), ..self.clone() }
    }

    /// Runs a ClickHouse query in this test's database and returns its result as text.
    ///
    /// # Panics
    /// When ClickHouse rejects it.
    pub async fn clickhouse(&self, query: &str) -> String {
        accepted(&self.clickhouse_url, query, Vec::new()).await
    }

    /// Runs a ClickHouse insert with these rows in its format.
    ///
    /// # Panics
    /// When ClickHouse refuses it.
    pub async fn clickhouse_insert(&self, query: &str, rows: Vec<u8>) {
        accepted(&self.clickhouse_url, query, rows).await;
    }

    /// Connects to this test's Postgres database.
    pub async fn postgres(&self) -> PgConnection {
        PgConnection::connect(&self.database_url).await.unwrap()
    }

    /// Configures the topic of clicks to keep the producers' times instead of the broker's, and records of any age.
    ///
    /// # Panics
    /// When Kafka rejects it.
    pub async fn keep_given_times(&self) {
        let admin: AdminClient<_> = self.kafka().create().unwrap();
        let clicks = self.topic(topic::CLICKS);
        let change = AlterConfig::new(ResourceSpecifier::Topic(&clicks))
            .set("message.timestamp.type", "CreateTime")
            .set("retention.ms", "-1");
        admin.alter_configs(&[change], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
    }

    /// Removes the topics, for a program whose Kafka keeps running.
    ///
    /// # Panics
    /// When Kafka refuses.
    pub async fn remove_topics(&self) {
        let admin: AdminClient<_> = self.kafka().create().unwrap();
        let names = topic::ALL.map(|topic| self.topic(topic));
        let names = names.each_ref().map(String::as_str);
        for result in admin.delete_topics(&names, &AdminOptions::new()).await.unwrap() {
            result.unwrap();
        }
    }

    /// Removes the topics and both databases, for a program whose engines keep running.
    ///
    /// # Panics
    /// When an engine rejects it.
    pub async fn remove(self) {
        self.remove_topics().await;
        let database = self.topic_prefix.trim_end_matches('.');
        accepted(&engine("CLICKHOUSE_URL"), &format!("DROP DATABASE {database}"), Vec::new()).await;
        let mut admin = PgConnection::connect(&engine("DATABASE_URL")).await.unwrap();
        admin.execute(sqlx::AssertSqlSafe(format!("DROP DATABASE {database}"))).await.unwrap();
    }
}

/// Creates isolated parts of the engines that `./dev test` started or that the environment names.
///
/// # Panics
/// When `KAFKA_BROKERS`, `CLICKHOUSE_URL` or `DATABASE_URL` is missing, or an engine rejects it.
pub async fn isolated() -> Isolated {
    let [kafka, clickhouse, postgres] = ["KAFKA_BROKERS", "CLICKHOUSE_URL", "DATABASE_URL"].map(engine);
    isolated_on(&kafka, &clickhouse, &postgres).await
}

/// Creates isolated parts of engines that a test has started.
///
/// # Panics
/// When an engine refuses.
pub async fn isolated_on(kafka_brokers: &str, clickhouse_url: &str, database_url: &str) -> Isolated {
    let name = name();
    let isolated = Isolated {
        kafka_brokers: kafka_brokers.to_owned(),
        topic_prefix: format!("{name}."),
        clickhouse_url: with_database(clickhouse_url, &name),
        database_url: with_database(database_url, &name),
    };
    tokio::join!(
        create_topics(&isolated, topic::CLICKS.partitions),
        create_clickhouse(&isolated, clickhouse_url, &name),
        create_postgres(&isolated, database_url, &name)
    );
    isolated
}

/// Creates topics and no databases, which is all that an edge needs.
///
/// # Panics
/// When Kafka refuses.
pub async fn topics_on(kafka_brokers: &str) -> Isolated {
    let isolated = Isolated {
        kafka_brokers: kafka_brokers.to_owned(),
        topic_prefix: format!("{}.", name()),
        clickhouse_url: String::new(),
        database_url: String::new(),
    };
    create_topics(&isolated, topic::CLICKS.partitions).await;
    isolated
}

/// Creates topics and a ClickHouse database, which is all that a processor needs. The topic of clicks has this many
/// partitions.
///
/// # Panics
/// When an engine refuses.
pub async fn counting_on(kafka_brokers: &str, clickhouse_url: &str, partitions: i32) -> Isolated {
    let name = name();
    let isolated = Isolated {
        kafka_brokers: kafka_brokers.to_owned(),
        topic_prefix: format!("{name}."),
        clickhouse_url: with_database(clickhouse_url, &name),
        database_url: String::new(),
    };
    tokio::join!(create_topics(&isolated, partitions), create_clickhouse(&isolated, clickhouse_url, &name));
    isolated
}

/// The same in the engines that `./dev test` started or that the environment names, with the default number of
/// partitions.
///
/// # Panics
/// When `KAFKA_BROKERS` or `CLICKHOUSE_URL` is missing, or an engine rejects it.
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

fn name() -> String {
    format!("t{}", uuid::Uuid::now_v7().simple())
}

fn engine(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run the tests with ./dev test, which starts the engines")
    })
}

fn with_database(url: &str, database: &str) -> String {
    let mut url = Url::parse(url).unwrap();
    url.set_path(database);
    url.to_string()
}

async fn create_topics(isolated: &Isolated, click_partitions: i32) {
    let admin: AdminClient<_> = isolated.kafka().create().unwrap();
    let names = topic::ALL.map(|topic| isolated.topic(topic));
    let topics: Vec<NewTopic<'_>> = std::iter::zip(topic::ALL, &names)
        .map(|(topic, name)| {
            let partitions = if topic == topic::CLICKS { click_partitions } else { topic.partitions };
            let start = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
            topic.config.iter().fold(start, |new, (key, value)| new.set(key, value))
        })
        .collect();
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
    for result in admin.create_topics(&topics, &options).await.unwrap() {
        result.unwrap();
    }
}

async fn create_clickhouse(isolated: &Isolated, url: &str, name: &str) {
    accepted(url, &format!("CREATE DATABASE {name}"), Vec::new()).await;
    for migration in MIGRATIONS {
        for statement in migration.statements() {
            isolated.clickhouse(&statement).await;
        }
    }
}

async fn create_postgres(isolated: &Isolated, url: &str, name: &str) {
    let mut admin = PgConnection::connect(url).await.unwrap();
    admin.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
    let mut own = isolated.postgres().await;
    sqlx::migrate!("../schemas/postgres").run(&mut own).await.unwrap();
}

/// Runs a ClickHouse statement at a URL with user and database, and returns its result as text.
///
/// # Errors
/// ClickHouse's error, or why there is no answer.
pub async fn clickhouse(url: &str, query: &str, rows: Vec<u8>) -> Result<String, String> {
    let mut url = Url::parse(url).map_err(|error| error.to_string())?;
    let database = url.path().trim_start_matches('/').to_owned();
    let user = url.username().to_owned();
    let password = url.password().map(str::to_owned);
    url.set_path("/");
    // Neither call fails on an http URL.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.query_pairs_mut().append_pair("database", &database).append_pair("query", query);
    // ClickHouse requires a length, also for an empty body.
    let mut request = http_client().post(url).header("content-length", rows.len()).body(rows);
    if !user.is_empty() {
        request = request.basic_auth(user, password);
    }
    let answer = request.send().await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let text = answer.text().await.map_err(|error| error.to_string())?;
    if status.is_success() { Ok(text) } else { Err(text) }
}

async fn accepted(url: &str, query: &str, rows: Vec<u8>) -> String {
    let answer = clickhouse(url, query, rows).await;
    answer.unwrap_or_else(|error| panic!("ClickHouse refused {query}: {error}"))
}

/// Returns a client for plain HTTP without redirects and proxies.
pub fn http_client() -> reqwest::Client {
    // Fails when the provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap()
}
