//! The replicas of ClickHouse, of which statements use one at a time.
//!
//! All replicas of a shard have the same rows, some a moment later than others. A program stays with one of them while
//! it works, and changes to another one when it fails. Of most tables every shard has all rows.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use clickhouse::Client;
use clickhouse::error::{Error, Result};
use clickhouse::insert_formatted::InsertFormatted;
use clickhouse::query::Query;
use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::places::{Known, Place};
use super::{ClickhouseConfig, ClickhouseUrl, Everywhere, clients};
use crate::{Check, Shutdown, health};

/// How long a replica may take to answer before it counts as failed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a cluster's replicas are probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a replica may take to get the rows of the others.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a replica that answers may take to get them when there is time.
const CATCH_UP: Duration = Duration::from_secs(60);

/// ClickHouse's code of `TIMEOUT_EXCEEDED`.
const BEHIND: &str = "Code: 159.";

/// ClickHouse. All that were made of one configuration use the same replica of each shard; see [`Clickhouse::pinned`].
#[derive(Clone)]
pub struct Clickhouse {
    replicas: Arc<[Replica]>,
    known: Known,
    /// Statements use a replica of this shard; without one, of any.
    shard: Option<u16>,
    cluster: Option<Arc<str>>,
    url: Arc<ClickhouseUrl>,
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
        let known = config.known.clone();
        known.begin_with(replicas.len());
        let cluster = config.cluster.as_deref().map(Arc::from);
        let url = Arc::new(config.url.clone());
        let clickhouse = Self { replicas, known, shard: None, cluster, url, is_replicated };
        if !is_replicated {
            return clickhouse;
        }
        [
            // Two inserts of equal rows are two inserts, unless they name what they follow.
            ("insert_deduplicate", "0"),
            // Its default in ClickHouse 26.7 is to ignore the setting above.
            ("deduplicate_insert", "backward_compatible_choice"),
            ("insert_quorum", "0"),
            ("insert_quorum_parallel", "1"),
            ("insert_quorum_timeout", "20000"),
            // A statement on several shards reads a table of all shards in a subquery once.
            ("distributed_product_mode", "global"),
            // A statement that changes rows ends when all replicas have done it.
            ("mutations_sync", "2"),
            ("lightweight_deletes_sync", "2"),
            ("alter_sync", "2"),
            ("replication_wait_for_inactive_replica_timeout", "20"),
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

    /// Returns the shard whose replicas its statements use; `None` when they use any.
    #[must_use]
    pub fn shard(&self) -> Option<u16> {
        self.shard
    }

    /// Returns one that stays with the replicas that are used now.
    #[must_use]
    pub fn pinned(&self) -> Self {
        Self { known: self.known.pinned(), ..self.clone() }
    }

    /// Returns one that stays with a replica, by its index.
    #[must_use]
    pub fn at(&self, replica: usize) -> Self {
        let known = self.known.pinned();
        known.choose(replica, None);
        Self { known, shard: None, ..self.clone() }
    }

    /// Returns the index of the replica that is used now.
    #[must_use]
    pub fn chosen(&self) -> usize {
        self.known.order(self.shard)[0]
    }

    /// Changes to another replica: of its shard, if its statements use one, or else of any.
    pub fn choose(&self, replica: usize) {
        self.choose_of(self.shard, replica);
    }

    fn choose_of(&self, shard: Option<u16>, replica: usize) {
        if self.known.choose(replica, shard) {
            tracing::warn!(replica = self.replicas[replica].name, "using another replica of ClickHouse now");
        }
    }

    /// Changes to the first replica that answers, if one does. For commands, which nobody watches for.
    pub async fn choose_working(&self) {
        if self.replicas.len() > 1 {
            let _ = self.probe().await;
        }
    }

    /// Returns the indexes of all replicas, or of all of its shard, the one that is used now first.
    pub fn from_chosen(&self) -> impl Iterator<Item = usize> {
        self.known.order(self.shard).into_iter()
    }

    /// Returns one whose statements use the replicas of a shard, by the number that is macro `shard` of its servers.
    ///
    /// # Errors
    /// When none of them has answered yet.
    pub async fn of_shard(&self, shard: u16) -> Result<Self> {
        if self.shards().await?.len() <= 1 {
            return Ok(self.clone());
        }
        match self.known.order(Some(shard))[..] {
            [] => Err(Error::Custom(format!("CLICKHOUSE_URL names no replica of shard {shard}"))),
            _ => Ok(Self { shard: Some(shard), ..self.clone() }),
        }
    }

    /// Returns the numbers of all shards, ascending; none for a single server.
    ///
    /// # Errors
    /// When no replica of a shard has answered yet.
    pub async fn shards(&self) -> Result<Vec<u16>> {
        if !self.is_replicated {
            return Ok(Vec::new());
        }
        if let Some(shards) = self.known.shards() {
            return Ok(shards);
        }
        let asked = self.replicas.iter().enumerate().map(|(index, replica)| self.look_at(index, replica));
        let answers = join_all(asked).await;
        self.known.shards().ok_or_else(|| {
            let faults: Vec<String> = answers.into_iter().filter_map(std::result::Result::err).collect();
            Error::Custom(format!("not every shard of ClickHouse has answered yet: {}", faults.join("; ")))
        })
    }

    /// Returns one for each shard, whose statements use the replicas of that shard; one for a single server.
    ///
    /// # Errors
    /// As those of [`Clickhouse::shards`].
    pub async fn each_shard(&self) -> Result<Vec<Self>> {
        let shards = self.shards().await?;
        if shards.len() <= 1 {
            return Ok(vec![self.clone()]);
        }
        Ok(shards.into_iter().map(|shard| Self { shard: Some(shard), ..self.clone() }).collect())
    }

    /// Returns where a statement reads tables of all shards instead of its own: the replicas that are used now.
    ///
    /// # Errors
    /// As those of [`Clickhouse::shards`].
    pub async fn everywhere(&self) -> Result<Everywhere> {
        let shards = self.shards().await?;
        if shards.len() <= 1 {
            return Ok(Everywhere::default());
        }
        let used: Option<Vec<String>> = shards.into_iter().map(|shard| self.known.address(shard)).collect();
        let used = used
            .ok_or_else(|| Error::Custom("a server of the cluster does not find itself in it".to_owned()))?;
        Ok(Everywhere::at(&self.url, used.join(",")))
    }

    /// Returns the replicas' names, as host and port.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.replicas.iter().map(|replica| &*replica.name)
    }

    /// Returns a replica's name, as host and port.
    #[must_use]
    pub fn name(&self, replica: usize) -> &str {
        &self.replicas[replica].name
    }

    /// Returns whether the tables are replicated.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        self.is_replicated
    }

    /// Returns the client of the replica that is used now.
    #[must_use]
    pub fn client(&self) -> Client {
        let client = self.replicas[self.chosen()].client.clone();
        if self.known.confirm_inserts() { client.with_setting("insert_quorum", "auto") } else { client }
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

    /// Waits until the replica that is used now has all rows of these tables that any replica had stored before. A
    /// single server has them.
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

    /// Like [`Clickhouse::sync`], but a replica that answers gets a minute: for work that no other replica can do, or
    /// that has time.
    ///
    /// # Errors
    /// When it does not answer, or does not get them.
    pub async fn catch_up(&self, tables: &[&str]) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.sync(tables).await {
                Err(Error::BadResponse(text)) if text.starts_with(BEHIND) && began.elapsed() < CATCH_UP => {}
                done => return done,
            }
        }
    }

    /// The same as [`Clickhouse::sync`] on each shard.
    ///
    /// # Errors
    /// Also those of [`Clickhouse::shards`].
    pub async fn sync_each_shard(&self, tables: &[&str]) -> Result<()> {
        for shard in self.each_shard().await? {
            shard.sync(tables).await?;
        }
        Ok(())
    }

    /// Changes to the first replica, from the present one on, that gets all rows of these tables; see
    /// [`Clickhouse::sync`].
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

    /// Changes to other replicas if the present ones do not work, and returns the detail of a check: which ones do not.
    async fn probe(&self) -> std::result::Result<String, String> {
        let answers = join_all(self.replicas.iter().enumerate().map(|(index, replica)| async move {
            let fault = self.look_at(index, replica).await.err()?;
            Some(if self.replicas.len() == 1 { fault } else { format!("{}: {fault}", replica.name) })
        }))
        .await;
        let faults: Vec<&str> = answers.iter().flatten().map(String::as_str).collect();
        // Those of each shard, and of any.
        let shards = self.known.shards().unwrap_or_default().into_iter().map(Some);
        let mut has_each = true;
        for shard in shards.chain([None]) {
            match self.known.order(shard).into_iter().find(|replica| answers[*replica].is_none()) {
                Some(working) => self.choose_of(shard, working),
                None => has_each = false,
            }
        }
        if !has_each {
            return Err(faults.join("; "));
        }
        Ok(if faults.is_empty() { health::OK.to_owned() } else { faults.join("; ") })
    }

    /// Asks a replica whether it works, and for its place; returns what is wrong with it.
    async fn look_at(&self, index: usize, replica: &Replica) -> std::result::Result<(), String> {
        let probe = async {
            if !self.is_replicated {
                return replica.client.query_raw("SELECT toUInt64(0)").fetch_one::<u64>().await.map(|_| None);
            }
            let place = Place::asked_for(self.cluster.as_deref().unwrap_or_default());
            replica.client.query_raw(&place).fetch_one::<Place>().await.map(Some)
        };
        // There is nothing to change to from a single server, however slow it is.
        let answer = match self.replicas.len() {
            1 => Ok(probe.await),
            _ => timeout(PROBE_TIMEOUT, probe).await,
        };
        match answer {
            Ok(Ok(place)) => match place.map(|place| self.known.learn(index, place)) {
                Some(Err(fault)) => Err(fault.to_owned()),
                Some(Ok(())) | None => Ok(()),
            },
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer within 2 seconds".to_owned()),
        }
    }
}

/// Probes ClickHouse until a shutdown is requested, and changes to another replica when the present one fails.
pub async fn watch(clickhouse: Clickhouse, check: Check, shutdown: Shutdown) {
    let interval = if clickhouse.replicas.len() > 1 { PROBE_INTERVAL } else { health::READY_INTERVAL };
    health::watch_every(interval, check, shutdown, || clickhouse.probe()).await;
}
