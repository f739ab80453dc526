//! Isolated parts of the real engines for one test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use devstack::clickhouse_cluster::Cluster;
use devstack::{Kind, clickhouse, kafka};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use reqwest::Url;
use schemas::clickhouse::MIGRATIONS;
use schemas::grants::{self, User};
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
    /// The other replicas of ClickHouse, as `host:port`, which the programs are given after that of the URL.
    pub other_clickhouse: Vec<String>,
    /// For `DATABASE_URL`: the test's own database.
    pub database_url: String,
    /// Another host of Postgres, as `host:port`, which the programs are given before that of the URL.
    pub other_postgres: Option<String>,
    /// Whether the engines have the users of [`schemas::grants`]: those that tests start, not an administrator's.
    pub has_users: bool,
}

impl Isolated {
    /// Returns the prefix without its dot.
    fn name(&self) -> &str {
        self.topic_prefix.trim_end_matches('.')
    }

    /// Returns the topic's name with this test's prefix.
    pub fn topic(&self, topic: topic::Topic) -> String {
        format!("{}{}", self.topic_prefix, topic.name)
    }

    /// Returns the variables with which a user of the programs reaches the engines. It has exactly the rights that
    /// `api migrate --print-grants` prints.
    pub fn variables_of(&self, user: User) -> Vec<(String, String)> {
        let mut variables = vec![
            ("HOPLINE_TOPIC_PREFIX", self.topic_prefix.clone()),
            ("CLICKHOUSE_URL", self.clickhouse_url_of(user)),
            ("DATABASE_URL", self.database_url_of(user)),
            // Tests audit where they mean to.
            ("HOPLINE_AUDIT_HOURS", "0".to_owned()),
        ];
        if !self.other_clickhouse.is_empty() {
            variables.push(("HOPLINE_CLICKHOUSE_CLUSTER", clickhouse::CLUSTER.to_owned()));
        }
        if self.topic_replicas() > 1 {
            variables.push(("HOPLINE_TOPIC_REPLICAS", self.topic_replicas().to_string()));
        }
        let brokers = match self.has_users {
            true => kafka::with_users(&self.kafka_brokers),
            false => self.kafka_brokers.clone(),
        };
        let user = self.has_users.then_some((user.name(), PASSWORD));
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value));
        variables.chain(kafka::variables(kafka::settings(&brokers, user, None))).collect()
    }

    /// Returns the URL of ClickHouse for a user of the programs.
    pub fn clickhouse_url_of(&self, user: User) -> String {
        let of_database = || clickhouse::user_of(&database_of(&self.clickhouse_url), user);
        let url = with_user(&self.clickhouse_url, self.has_users.then(of_database));
        if self.other_clickhouse.is_empty() {
            return url;
        }
        let first = self.clickhouse_host();
        let hosts = [vec![first.clone()], self.other_clickhouse.clone()].concat().join(",");
        url.replacen(&first, &hosts, 1)
    }

    /// Returns the expression with which the administrator reads the clicks of all shards.
    pub fn clicks(&self) -> String {
        match self.other_clickhouse[..] {
            [] => "clicks".to_owned(),
            _ => format!("cluster('{}', currentDatabase(), 'clicks')", clickhouse::CLUSTER),
        }
    }

    /// Returns the URL of a replica of ClickHouse.
    pub fn clickhouse_of(&self, replica: usize) -> String {
        match replica.checked_sub(1) {
            Some(other) => {
                self.clickhouse_url.replacen(&self.clickhouse_host(), &self.other_clickhouse[other], 1)
            }
            None => self.clickhouse_url.clone(),
        }
    }

    /// Returns the URL of Postgres for a user of the programs.
    pub fn database_url_of(&self, user: User) -> String {
        let url = self.primary_url_of(user);
        match &self.other_postgres {
            Some(other) => url.replacen('@', &format!("@{other},"), 1),
            None => url,
        }
    }

    fn primary_url_of(&self, user: User) -> String {
        with_user(&self.database_url, self.has_users.then(|| user.name().to_owned()))
    }

    /// Returns how many replicas the topics have.
    fn topic_replicas(&self) -> i32 {
        if self.kafka_brokers.split(',').count() < 3 { 1 } else { 3 }
    }

    /// Returns the configuration of a Kafka client of the administrator.
    pub fn kafka(&self) -> ClientConfig {
        kafka::settings(&self.kafka_brokers, None, None).into_iter().collect()
    }

    /// Returns host and port of ClickHouse.
    pub(crate) fn clickhouse_host(&self) -> String {
        host_of(&self.clickhouse_url)
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

    /// Runs a ClickHouse statement in this test's database and returns its result as text. A query reads the clicks of
    /// all shards, once each replica has those that the others have; other statements run on each shard.
    ///
    /// # Panics
    /// When ClickHouse rejects it.
    pub async fn clickhouse(&self, statement: &str) -> String {
        if statement.starts_with("SELECT") {
            if !self.other_clickhouse.is_empty() && statement.contains("FROM clicks") {
                for url in self.every_clickhouse() {
                    accepted(&url, "SYSTEM SYNC REPLICA clicks LIGHTWEIGHT", Vec::new()).await;
                }
            }
            let query = statement.replace("FROM clicks", &format!("FROM {}", self.clicks()));
            return accepted(&self.clickhouse_url, &query, Vec::new()).await;
        }
        let mut answers = String::new();
        for url in self.each_shard().await {
            answers += &accepted(&url, statement, Vec::new()).await;
        }
        answers
    }

    /// Returns the URL of each server of ClickHouse.
    pub fn every_clickhouse(&self) -> Vec<String> {
        (0..=self.other_clickhouse.len()).map(|replica| self.clickhouse_of(replica)).collect()
    }

    /// Returns the URL of a replica of each shard.
    async fn each_shard(&self) -> Vec<String> {
        if self.other_clickhouse.is_empty() {
            return vec![self.clickhouse_url.clone()];
        }
        let mut shards = BTreeMap::new();
        for url in self.every_clickhouse() {
            shards.entry(accepted(&url, "SELECT getMacro('shard')", Vec::new()).await).or_insert(url);
        }
        shards.into_values().collect()
    }

    /// Runs a ClickHouse insert with these rows in its format, on the first shard.
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
        self.clickhouse(&format!("DROP DATABASE {}", database_of(&self.clickhouse_url))).await;
        let mut admin = PgConnection::connect(&each_host(&engine("DATABASE_URL"))[0]).await.unwrap();
        let drop = format!("DROP DATABASE {}", database_of(&self.database_url));
        admin.execute(sqlx::AssertSqlSafe(drop)).await.unwrap();
    }
}

/// Creates isolated parts of the engines that `./dev test` started or that the environment names.
///
/// # Panics
/// When `KAFKA_BROKERS`, `CLICKHOUSE_URL` or `DATABASE_URL` is missing, or an engine rejects it.
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

/// The settings of a topic whose records have their producer's times. Not changed later: a broker applies a change at some
/// time after it confirmed it.
const GIVEN_TIMES: [(&str, &str); 2] = [("message.timestamp.type", "CreateTime"), ("retention.ms", "-1")];

/// Creates isolated parts of engines that a test has started.
///
/// # Panics
/// When an engine refuses.
pub async fn isolated_on(kafka_brokers: &str, clickhouse_url: &str, database_url: &str) -> Isolated {
    migrated([kafka_brokers, clickhouse_url, database_url].map(str::to_owned), &[]).await
}

/// Creates topics, of which that of clicks has these settings instead of its own, and databases with tables.
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

/// Creates databases without tables and no topics: what `api migrate` starts from.
///
/// # Panics
/// When an engine refuses.
pub async fn empty_on(kafka_brokers: &str, clickhouse_url: &str, database_url: &str) -> Isolated {
    empty_with(kafka_brokers, &each_host(clickhouse_url), database_url).await
}

async fn empty_with(kafka_brokers: &str, clickhouse_urls: &[String], database_url: &str) -> Isolated {
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
/// When a variable is missing, or an engine refuses.
pub async fn empty() -> Isolated {
    let [kafka, clickhouse, postgres] = given();
    empty_on(&kafka, &clickhouse, &postgres).await
}

/// Creates topics and no databases, which is all that an edge needs.
///
/// # Panics
/// When Kafka refuses.
pub async fn topics_on(kafka_brokers: &str) -> Isolated {
    let isolated = named(kafka_brokers);
    tokio::join!(add_acls(&isolated), create_topics(&isolated, topic::CLICKS.partitions, &[]));
    isolated
}

/// Creates topics and a ClickHouse database, which is all that a processor needs. The topic of clicks has this many
/// partitions.
///
/// # Panics
/// When an engine refuses.
pub async fn counting_on(kafka_brokers: &str, clickhouse_url: &str, partitions: i32) -> Isolated {
    counting_with(kafka_brokers, &each_host(clickhouse_url), partitions, &[]).await
}

/// The same on the replicas of a cluster.
///
/// # Panics
/// When an engine refuses.
pub async fn counting_on_cluster(kafka_brokers: &str, cluster: &Cluster, partitions: i32) -> Isolated {
    counting_with(kafka_brokers, &urls_of(cluster), partitions, &[]).await
}

/// The same, with a topic of clicks whose records have their producer's times.
///
/// # Panics
/// When an engine refuses.
pub async fn given_times_on_cluster(kafka_brokers: &str, cluster: &Cluster, partitions: i32) -> Isolated {
    counting_with(kafka_brokers, &urls_of(cluster), partitions, &GIVEN_TIMES).await
}

async fn counting_with(
    kafka_brokers: &str,
    clickhouse_urls: &[String],
    partitions: i32,
    click_settings: &[(&str, &str)],
) -> Isolated {
    let mut isolated = named(kafka_brokers);
    create_clickhouse(&mut isolated, clickhouse_urls).await;
    let topics = create_topics(&isolated, partitions, click_settings);
    tokio::join!(add_acls(&isolated), topics, migrate_clickhouse(&isolated));
    isolated
}

/// Creates databases without tables and no topics, with ClickHouse's on each replica of a cluster.
///
/// # Panics
/// When an engine refuses.
pub async fn empty_on_cluster(cluster: &Cluster) -> Isolated {
    let [kafka, _, postgres] = given();
    empty_with(&kafka, &urls_of(cluster), &postgres).await
}

fn urls_of(cluster: &Cluster) -> Vec<String> {
    cluster.shards.iter().flatten().map(|server| server.url().to_owned()).collect()
}

/// Returns the URL of each host of a URL.
fn each_host(url: &str) -> Vec<String> {
    let hosts = url.split(['@', '/']).nth(3).unwrap_or_default();
    hosts.split(',').map(|host| url.replacen(hosts, host, 1)).collect()
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

/// The password of every user of the engines that tests start.
const PASSWORD: &str = "hopline";

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
    }
}

/// Returns a URL for this user.
fn with_user(url: &str, user: Option<String>) -> String {
    let (Ok(mut with), Some(user)) = (Url::parse(url), user) else { return url.to_owned() };
    // Neither fails on a URL with a host.
    let _ = with.set_username(&user);
    let _ = with.set_password(Some(PASSWORD));
    with.into()
}

fn engine(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run the tests with ./dev test, which starts the engines")
    })
}

fn host_of(url: &str) -> String {
    let url = Url::parse(url).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port_or_known_default().unwrap())
}

fn database_of(url: &str) -> String {
    Url::parse(url).map_or_else(|_| String::new(), |url| url.path().trim_start_matches('/').to_owned())
}

fn with_database(url: &str, database: &str) -> String {
    let mut url = Url::parse(url).unwrap();
    url.set_path(database);
    url.to_string()
}

/// Creates the topics, that of clicks with these partitions and these settings instead of its own.
async fn create_topics(isolated: &Isolated, click_partitions: i32, click_settings: &[(&str, &str)]) {
    let admin: AdminClient<_> = isolated.kafka().create().unwrap();
    let names = topic::ALL.map(|topic| isolated.topic(topic));
    let replicas = isolated.topic_replicas();
    let topics: Vec<NewTopic<'_>> = std::iter::zip(topic::ALL, &names)
        .map(|(topic, name)| {
            let (partitions, instead) = if topic == topic::CLICKS {
                (click_partitions, click_settings)
            } else {
                (topic.partitions, &[][..])
            };
            let own = topic.config.iter().filter(|(key, _)| instead.iter().all(|(other, _)| other != key));
            let mut start = NewTopic::new(name, partitions, TopicReplication::Fixed(replicas));
            if replicas > 1 {
                start = start.set("min.insync.replicas", "2");
            }
            own.chain(instead).fold(start, |new, (key, value)| new.set(key, value))
        })
        .collect();
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
    for result in admin.create_topics(&topics, &options).await.unwrap() {
        result.unwrap();
    }
}

async fn add_acls(isolated: &Isolated) {
    if isolated.has_users {
        let (client, prefix) = (isolated.kafka(), isolated.topic_prefix.clone());
        kafka::add_acls(client, grants::kafka(&prefix)).await.unwrap();
    }
}

/// Creates a database on each server of ClickHouse.
async fn create_clickhouse(isolated: &mut Isolated, servers: &[String]) {
    isolated.clickhouse_url = create_first_clickhouse(&servers[0], isolated).await;
    for server in &servers[1..] {
        let create = format!("CREATE DATABASE {}", database_of(&isolated.clickhouse_url));
        accepted(server, &create, Vec::new()).await;
        isolated.other_clickhouse.push(host_of(server));
    }
}

/// Creates a database, and returns its URL.
async fn create_first_clickhouse(url: &str, isolated: &Isolated) -> String {
    if !isolated.has_users {
        let name = isolated.name();
        accepted(url, &format!("CREATE DATABASE {name}"), Vec::new()).await;
        return with_database(url, name);
    }
    // One of those that have users of their own.
    let names: Vec<String> = clickhouse::databases().collect();
    // Other test programs draw too.
    let drawn = u32::from_be_bytes(*uuid::Uuid::now_v7().as_bytes().last_chunk().unwrap());
    let first = usize::try_from(drawn).unwrap() % names.len();
    for name in names.iter().cycle().skip(first).take(names.len()) {
        match clickhouse(url, &format!("CREATE DATABASE {name}"), Vec::new()).await {
            Ok(_) => return with_database(url, name),
            Err(error) => assert!(error.contains("DATABASE_ALREADY_EXISTS"), "{error}"),
        }
    }
    panic!("all {} databases are in use", names.len());
}

/// Creates the tables of the first server, and those that it has then on the others.
async fn migrate_clickhouse(isolated: &Isolated) {
    let is_cluster = !isolated.other_clickhouse.is_empty();
    let url =
        if is_cluster { isolated.clickhouse_url.clone() } else { isolated.clickhouse_url_of(User::Migrate) };
    for statement in MIGRATIONS.iter().flat_map(|migration| migration.statements(is_cluster)) {
        accepted(&url, &statement, Vec::new()).await;
    }
    if !is_cluster {
        return;
    }
    let tables =
        "SELECT create_table_query FROM system.tables WHERE database = currentDatabase() FORMAT TSVRaw";
    for create in isolated.clickhouse(tables).await.split("\nCREATE ") {
        let create = create.trim_start_matches("CREATE ");
        for other in &isolated.every_clickhouse()[1..] {
            accepted(other, &format!("CREATE {create}"), Vec::new()).await;
        }
    }
}

/// Creates a database, and returns its URL.
async fn create_postgres(url: &str, isolated: &Isolated) -> String {
    let mut admin = PgConnection::connect(url).await.unwrap();
    let owner = if isolated.has_users { format!(" OWNER {}", User::Migrate.name()) } else { String::new() };
    let create = format!("CREATE DATABASE {}{owner}", isolated.name());
    admin.execute(sqlx::AssertSqlSafe(create)).await.unwrap();
    with_database(url, isolated.name())
}

async fn migrate_postgres(isolated: &Isolated) {
    let mut owner = PgConnection::connect(&isolated.primary_url_of(User::Migrate)).await.unwrap();
    sqlx::migrate!("../schemas/postgres").run(&mut owner).await.unwrap();
    if isolated.has_users {
        let grants: Vec<String> = grants::postgres().into_iter().map(|(_, grant)| grant).collect();
        owner.execute(sqlx::AssertSqlSafe(grants.join(";\n"))).await.unwrap();
    }
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
