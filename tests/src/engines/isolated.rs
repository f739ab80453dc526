//! The parts of the engines that one test has, and how to reach them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use devstack::{each_host, kafka};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use reqwest::Url;
use schemas::grants::User;
use schemas::topic;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::runtime::Builder;

use super::statements::{accepted, clickhouse};
use super::urls::{PASSWORD, database_of, engine, host_of, with_user};
use crate::{ANSWER, eventually};

/// How long a database may take to be dropped.
const REMOVAL: Duration = Duration::from_secs(60);

/// A topic prefix, a ClickHouse database and a Postgres database that no other test uses, with topics created and
/// migrations applied.
///
/// Only the databases of ClickHouse are dropped when the test ends: `./dev test` deletes the engines.
#[derive(Debug, Clone)]
pub struct Isolated {
    /// For `KAFKA_BROKERS`.
    pub kafka_brokers: String,
    /// For `HOPLINE_TOPIC_PREFIX`; ends in a dot.
    pub topic_prefix: String,
    /// For `CLICKHOUSE_URL`: with the test's own database.
    pub clickhouse_url: String,
    /// The other replicas of ClickHouse, as `host:port`, after the URL's host in the programs' list.
    pub other_clickhouse: Vec<String>,
    /// For `DATABASE_URL`: the test's own database.
    pub database_url: String,
    /// Another host of Postgres, as `host:port`, before the URL's host in the programs' list.
    pub other_postgres: Option<String>,
    /// Whether the engines have the users of [`schemas::grants`]: those that tests start, not an administrator's.
    pub has_users: bool,
    /// Databases of a ClickHouse that tests share.
    pub databases: Vec<Arc<Database>>,
}

/// A database of a ClickHouse that tests share. Dropping this value drops the database: the tables of 400 tests took
/// half a core without any query, and the users of ClickHouse suffice for a limited number of databases.
///
/// Databases of Postgres stay: unused ones cost nothing, and two concurrent forced drops took more than a minute.
#[derive(Debug)]
pub struct Database {
    /// The administrator's URL of the server.
    pub(super) server: String,
    /// The statement that drops it.
    pub(super) statement: String,
}

impl Drop for Database {
    fn drop(&mut self) {
        let remove = || {
            let runtime =
                Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
            runtime.block_on(async {
                let removed = clickhouse(&self.server, &self.statement, Vec::new());
                tokio::time::timeout(REMOVAL, removed).await.map_err(|late| late.to_string())?
            })
        };
        // A runtime cannot wait inside another one.
        let removed = thread::scope(|scope| scope.spawn(remove).join());
        // A database that stays only costs time.
        if let Ok(Err(error)) = removed {
            tracing::warn!(statement = self.statement, error, "cannot drop a test's database");
        }
    }
}

impl Isolated {
    /// Returns whether ClickHouse is a cluster of several servers.
    pub fn is_replicated(&self) -> bool {
        !self.other_clickhouse.is_empty()
    }

    /// Returns the prefix without its dot.
    pub(super) fn name(&self) -> &str {
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
            // Tests start audits themselves.
            ("HOPLINE_AUDIT_HOURS", "0".to_owned()),
        ];
        if self.is_replicated() {
            variables.push(("HOPLINE_CLICKHOUSE_CLUSTER", devstack::clickhouse::CLUSTER.to_owned()));
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
        let of_database = || devstack::clickhouse::user_of(&database_of(&self.clickhouse_url), user);
        let url = with_user(&self.clickhouse_url, self.has_users.then(of_database));
        if !self.is_replicated() {
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
            _ => format!("cluster('{}', currentDatabase(), 'clicks')", devstack::clickhouse::CLUSTER),
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

    pub(super) fn primary_url_of(&self, user: User) -> String {
        with_user(&self.database_url, self.has_users.then(|| user.name().to_owned()))
    }

    /// Returns the number of replicas of each partition.
    pub(super) fn topic_replicas(&self) -> i32 {
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
    /// When ClickHouse's URL is invalid.
    #[must_use]
    pub fn with_clickhouse_at(&self, address: SocketAddr) -> Self {
        let mut url = Url::parse(&self.clickhouse_url).unwrap();
        url.set_ip_host(address.ip()).unwrap();
        url.set_port(Some(address.port())).unwrap();
        Self { clickhouse_url: url.into(), ..self.clone() }
    }

    /// Runs a ClickHouse statement in this test's database and returns its result as text. A query waits until all
    /// replicas have the same clicks, and reads those of all shards; other statements run on each shard.
    ///
    /// # Panics
    /// When ClickHouse rejects it.
    pub async fn clickhouse(&self, statement: &str) -> String {
        if statement.starts_with("SELECT") {
            if self.is_replicated() && statement.contains("FROM clicks") {
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
        if !self.is_replicated() {
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
    /// When ClickHouse rejects it.
    pub async fn clickhouse_insert(&self, query: &str, rows: Vec<u8>) {
        accepted(&self.clickhouse_url, query, rows).await;
    }

    /// Connects to this test's Postgres database.
    pub async fn postgres(&self) -> PgConnection {
        PgConnection::connect(&self.database_url).await.unwrap()
    }

    /// Removes the topics. From now on, no record can be written to their logs, on one broker.
    ///
    /// # Panics
    /// When Kafka rejects it.
    pub async fn remove_topics(&self) {
        self.remove_from_kafka(&topic::ALL.map(|topic| self.topic(topic))).await;
    }

    /// Deletes a topic and creates it again. From now on, no record can be written to the former log, on one broker.
    ///
    /// # Panics
    /// When Kafka rejects a request.
    pub async fn recreate_topic(&self, topic: topic::Topic) {
        let admin: AdminClient<_> = self.kafka().create().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(ANSWER));
        let name = self.topic(topic);
        self.remove_from_kafka(std::slice::from_ref(&name)).await;
        let new = NewTopic::new(&name, topic.partitions, TopicReplication::Fixed(self.topic_replicas()));
        let new = topic.config.iter().fold(new, |new, (key, value)| new.set(key, value));
        admin.create_topics([&new], &options).await.unwrap().remove(0).unwrap();
    }

    async fn remove_from_kafka(&self, names: &[String]) {
        let admin: AdminClient<_> = self.kafka().create().unwrap();
        let removed: Vec<&str> = names.iter().map(String::as_str).collect();
        for result in admin.delete_topics(&removed, &AdminOptions::new()).await.unwrap() {
            result.unwrap();
        }
        // Only the controller has confirmed it. Until the broker processes the deletion, it lists the topics, and it
        // confirms records that are written to the logs that it is about to delete. It processes one change after the
        // other, so those logs are gone when it processes a creation that is requested later.
        eventually("the topics are gone", async || {
            let listed = admin.inner().fetch_metadata(None, ANSWER).map_err(|error| error.to_string())?;
            match listed.topics().iter().find(|topic| removed.contains(&topic.name())) {
                Some(topic) => Err(format!("{} is listed", topic.name())),
                None => Ok(()),
            }
        })
        .await;
    }

    /// Deletes a consumer group once it has no members, as Kafka does when its offsets expire.
    ///
    /// # Panics
    /// When it keeps a member.
    pub async fn delete_group(&self, name: &str) {
        let admin: AdminClient<_> = self.kafka().create().unwrap();
        let group = format!("{}{name}", self.topic_prefix);
        eventually("the group is deleted", async || {
            admin.delete_groups(&[&group], &AdminOptions::new()).await.unwrap().remove(0)
        })
        .await;
    }

    /// Removes the topics and the database of Postgres, for a program whose engines keep running.
    ///
    /// # Panics
    /// When an engine rejects a statement or a topic.
    pub async fn remove(self) {
        self.remove_topics().await;
        let mut admin = PgConnection::connect(&each_host(&engine("DATABASE_URL"))[0]).await.unwrap();
        let drop = format!("DROP DATABASE {}", database_of(&self.database_url));
        admin.execute(sqlx::AssertSqlSafe(drop)).await.unwrap();
    }
}
