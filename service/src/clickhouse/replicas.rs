//! The replicas of ClickHouse, of which statements use one at a time.
//!
//! All replicas have the same rows, some a moment later than others. A program stays with one of them while it works,
//! and changes to another one when it fails.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clickhouse::Client;
use clickhouse::error::{Error, Result};
use clickhouse::insert_formatted::InsertFormatted;
use clickhouse::query::Query;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::{ClickhouseConfig, clients};
use crate::{Check, Shutdown, health};

/// How long a replica may take to answer before it counts as failed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a cluster's replicas are probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a replica may take to get the rows of the others.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// From this number of replicas on, an insert is confirmed by most of them: then the loss of one loses nothing, and the
/// others go on at once. Two could not store anything while one is away.
const REPLICAS_OF_QUORUM: usize = 3;

/// ClickHouse. All that were made of one configuration use the same replica; see [`Clickhouse::pinned`].
#[derive(Clone)]
pub struct Clickhouse {
    replicas: Arc<[Replica]>,
    /// The index of the replica that statements use.
    chosen: Arc<AtomicUsize>,
    is_replicated: bool,
}

struct Replica {
    /// Host and port.
    name: String,
    client: Client,
}

impl fmt::Debug for Clickhouse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.replicas.iter().map(|replica| &replica.name);
        formatter.debug_list().entries(names).finish()
    }
}

impl Clickhouse {
    /// Creates the clients, without connecting, so that a process starts while ClickHouse is down.
    ///
    /// They have no timeouts; callers set their own.
    #[must_use]
    pub fn new(config: &ClickhouseConfig) -> Self {
        let name = |server: &String| {
            let host = server.split_once("://").map_or(&**server, |(_, host)| host);
            host.trim_end_matches('/').to_owned()
        };
        let replica = |(server, client)| Replica { name: name(server), client };
        let replicas: Arc<[Replica]> = config.url.servers.iter().zip(clients(config)).map(replica).collect();
        let is_replicated = config.cluster.is_some() || replicas.len() > 1;
        let quorum = if replicas.len() >= REPLICAS_OF_QUORUM { "auto" } else { "0" };
        let clickhouse = Self { replicas, chosen: Arc::clone(&config.chosen), is_replicated };
        if !is_replicated {
            return clickhouse;
        }
        [
            // Two inserts of equal rows are two inserts, unless they name what they follow.
            ("insert_deduplicate", "0"),
            ("insert_quorum", quorum),
            ("insert_quorum_parallel", "1"),
            ("insert_quorum_timeout", "20000"),
            // A statement that changes rows ends when all replicas have done it.
            ("mutations_sync", "2"),
            ("lightweight_deletes_sync", "2"),
            ("alter_sync", "2"),
        ]
        .into_iter()
        .fold(clickhouse, |clickhouse, (setting, value)| clickhouse.with_setting(setting, value))
    }

    /// Adds a setting to every statement.
    #[must_use]
    pub fn with_setting(self, name: &str, value: impl Into<String>) -> Self {
        let value = value.into();
        let with_setting = |Replica { name: host, client }: &Replica| Replica {
            name: host.clone(),
            client: client.clone().with_setting(name, value.clone()),
        };
        Self { replicas: self.replicas.iter().map(with_setting).collect(), ..self }
    }

    /// Returns one that stays with the replica that is used now.
    #[must_use]
    pub fn pinned(&self) -> Self {
        self.at(self.chosen())
    }

    /// Returns one that stays with a replica, by its index.
    #[must_use]
    pub fn at(&self, replica: usize) -> Self {
        Self { chosen: Arc::new(AtomicUsize::new(replica)), ..self.clone() }
    }

    /// Returns the index of the replica that is used now.
    #[must_use]
    pub fn chosen(&self) -> usize {
        self.chosen.load(Ordering::Relaxed)
    }

    /// Changes to another replica.
    pub fn choose(&self, replica: usize) {
        if self.chosen.swap(replica, Ordering::Relaxed) != replica {
            tracing::warn!(replica = self.replicas[replica].name, "using another replica of ClickHouse now");
        }
    }

    /// Changes to the first replica that answers, if one does. For commands, which nobody watches for.
    pub async fn choose_working(&self) {
        if self.replicas.len() > 1 {
            let _ = self.probe().await;
        }
    }

    /// Returns the indexes of all replicas, the one that is used now first.
    pub fn from_chosen(&self) -> impl Iterator<Item = usize> {
        let (chosen, count) = (self.chosen(), self.replicas.len());
        (chosen..count).chain(0..chosen)
    }

    /// Returns the replicas' names, as host and port.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.replicas.iter().map(|replica| &*replica.name)
    }

    /// Returns whether the tables are replicated.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        self.is_replicated
    }

    /// Returns the client of the replica that is used now.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.replicas[self.chosen()].client
    }

    /// Begins a statement; see [`Client::query`].
    pub fn query(&self, sql: &str) -> Query {
        self.client().query(sql)
    }

    /// Begins a statement without placeholders; see [`Client::query_raw`].
    pub fn query_raw(&self, sql: &str) -> Query {
        self.client().query_raw(sql)
    }

    /// Begins an insert; see [`Client::insert_formatted_with`].
    pub fn insert_formatted_with(&self, sql: impl Into<String>) -> InsertFormatted {
        self.client().insert_formatted_with(sql)
    }

    /// Waits until the replica that is used now has all rows of these tables that any replica had stored before. A single
    /// server has them.
    ///
    /// # Errors
    /// When it does not get them in a few seconds.
    pub async fn sync(&self, tables: &[&str]) -> Result<()> {
        if !self.is_replicated {
            return Ok(());
        }
        let client = self.client();
        let sync = |table: &&str| {
            let sql = format!("SYSTEM SYNC REPLICA {table} LIGHTWEIGHT");
            client
                .query_raw(&sql)
                .with_setting("receive_timeout", SYNC_TIMEOUT.as_secs().to_string())
                .execute()
        };
        let synced = join_all(tables.iter().map(sync));
        // A replica that is frozen does not answer at all.
        timeout(SYNC_TIMEOUT + PROBE_TIMEOUT, synced)
            .await
            .map_err(|_| Error::TimedOut)?
            .into_iter()
            .collect()
    }

    /// Changes to the first replica, from the present one on, that gets all rows of these tables; see [`Clickhouse::sync`].
    ///
    /// # Errors
    /// When none does: the present one stays.
    pub async fn choose_complete(&self, tables: &[&str]) -> Result<()> {
        let mut outcome = Ok(());
        for replica in self.from_chosen() {
            outcome = self.at(replica).sync(tables).await;
            if outcome.is_ok() {
                self.choose(replica);
                break;
            }
        }
        outcome
    }

    /// Changes to another replica if the present one does not work, and returns the detail of a check: which ones do not.
    async fn probe(&self) -> std::result::Result<String, String> {
        let answers = join_all(self.replicas.iter().map(|replica| async {
            let probe = probe(&replica.client, self.is_replicated);
            // There is nothing to change to from a single server, however slow it is.
            let answer = match self.replicas.len() {
                1 => Ok(probe.await),
                _ => timeout(PROBE_TIMEOUT, probe).await,
            };
            let fault = answer.unwrap_or_else(|_| Err("no answer within 2 seconds".to_owned())).err()?;
            Some(if self.replicas.len() == 1 { fault } else { format!("{}: {fault}", replica.name) })
        }))
        .await;
        let faults: Vec<&str> = answers.iter().flatten().map(String::as_str).collect();
        if answers[self.chosen()].is_some() {
            match answers.iter().position(Option::is_none) {
                Some(working) => self.choose(working),
                None => return Err(faults.join("; ")),
            }
        }
        Ok(if faults.is_empty() { health::OK.to_owned() } else { faults.join("; ") })
    }
}

/// Asks a replica whether it works; returns what is wrong with it.
async fn probe(client: &Client, is_replicated: bool) -> std::result::Result<(), String> {
    const READ_ONLY: &str =
        "SELECT count() FROM system.replicas WHERE database = currentDatabase() AND is_readonly";
    let sql = if is_replicated { READ_ONLY } else { "SELECT toUInt64(0)" };
    match client.query_raw(sql).fetch_one::<u64>().await {
        Ok(0) => Ok(()),
        Ok(_) => Err("its tables are read-only, it does not reach ZooKeeper or Keeper".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Probes ClickHouse until a shutdown is requested, and changes to another replica when the present one fails.
pub async fn watch(clickhouse: Clickhouse, check: Check, shutdown: Shutdown) {
    let interval = if clickhouse.replicas.len() > 1 { PROBE_INTERVAL } else { health::READY_INTERVAL };
    health::watch_every(interval, check, shutdown, || clickhouse.probe()).await;
}
