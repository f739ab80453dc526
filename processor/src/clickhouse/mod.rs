//! Access to ClickHouse for the pipeline.

pub mod clock;
mod conversions;
mod fence;
mod positions;
mod rows;
pub mod sources;
pub(crate) mod statements;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clickhouse::Row;
use clickhouse::query::Query;
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::DeletedLink;
use serde::Deserialize;
use service::clickhouse::Clickhouse;
use tokio::time::timeout;
use uuid::Uuid;

pub(crate) use self::conversions::LookBack;
pub use self::fence::FencingToken;
pub(crate) use self::fence::OLDER_INSERTS_INTERVAL;
pub use self::positions::{Position, Progress, StoredRow, Stretch};
pub use self::rows::{After, ClickKey, Insertion, SoughtClick};

/// How long a statement may take before its answer counts as lost.
const TIMEOUT: Duration = Duration::from_secs(30);

/// ClickHouse's code of `FUNCTION_THROW_IF_VALUE_IS_NON_ZERO`, with which the guard of an insert rejects it.
const REFUSED: &str = "Code: 395.";

/// Why the result of a statement is unknown.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// ClickHouse returned an error, was unreachable, or closed the connection.
    #[error(transparent)]
    Clickhouse(#[from] clickhouse::error::Error),
    /// Another processor's statement came first.
    #[error("another processor was first, or what it wrote is only on a replica that is away")]
    Preceded,
    /// No answer arrived in time.
    #[error("no answer from ClickHouse within {} s", .0.as_secs())]
    Timeout(Duration),
}

/// Why an insert was not confirmed.
#[derive(Debug, thiserror::Error)]
pub enum InsertError {
    /// The guard rejected the statement; no row was stored.
    #[error("another processor owns this partition now, or ClickHouse is an older copy")]
    Fenced,
    /// It is unknown whether the rows were stored.
    #[error(transparent)]
    InDoubt(StoreError),
}

#[derive(Row, Deserialize)]
struct AddedLink {
    #[serde(with = "clickhouse::serde::uuid")]
    link_id: Uuid,
    added_at: i64,
}

/// Access to the tables of clicks.
#[derive(Clone)]
pub struct Store {
    client: Clickhouse,
    /// Identifies this process in the table of owners, for people.
    owner: String,
    /// Added to the tokens of inserts that replicas take once; see [`Store::forgetting_what_is_lost`].
    salt: String,
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Store").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Store {
    /// Creates a store; `owner` identifies this process in the table of owners.
    pub fn new(client: Clickhouse, owner: String) -> Self {
        Self { client, owner, salt: String::new() }
    }

    /// Returns a store for which inserts that were lost with a replica have left their places free: an epoch and a
    /// source are raised and begun once again. Only for rows that no replica can bring back.
    pub(crate) fn forgetting_what_is_lost(self) -> Self {
        Self { salt: format!("-{}", Uuid::now_v7().simple()), ..self }
    }

    /// Returns a store whose statements use the replicas of a shard.
    pub(crate) async fn of_shard(&self, shard: u16) -> Result<Self, StoreError> {
        Ok(Self { client: self.client.of_shard(shard).await?, ..self.clone() })
    }

    /// Returns a store for each shard, which stays with one replica.
    pub(crate) async fn each_shard(&self) -> Result<Vec<Self>, StoreError> {
        let of_each = self.client.pinned().each_shard().await?;
        Ok(of_each.into_iter().map(|client| Self { client, ..self.clone() }).collect())
    }

    /// Returns the client.
    pub(crate) fn client(&self) -> &Clickhouse {
        &self.client
    }

    /// Returns the shard of a partition that has no source yet: each gets as many partitions as the others.
    pub(crate) async fn shard_of_new(&self, partition: i32) -> Result<u16, StoreError> {
        let shards = self.client.shards().await?;
        let next = usize::try_from(partition).unwrap_or_default() % shards.len().max(1);
        Ok(shards.get(next).copied().unwrap_or_default())
    }

    /// Returns the time by ClickHouse's clock.
    pub(crate) async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        let millis: i64 =
            in_time(self.client.query("SELECT toUnixTimestamp64Milli(now64(3))").fetch_one()).await?;
        Ok(DateTime::from_timestamp_millis(millis).unwrap_or_default())
    }

    /// Makes replicas ignore an insert if one with this token was stored before, on any of them. A single server
    /// ignores the token.
    fn once(&self, insert: Query, token: &str) -> Query {
        let token = format!("{token}{}", self.salt);
        insert.with_setting("insert_deduplicate", "1").with_setting("insert_deduplication_token", token)
    }

    /// Changes to a replica that has what other processors stored in some tables, if the present one does not get it.
    ///
    /// # Errors
    /// When no replica gets it in time, for example because one stopped that alone has some rows.
    pub async fn choose_complete(&self, tables: &[&str]) -> Result<(), StoreError> {
        Ok(self.client.choose_complete(tables).await?)
    }

    /// Returns a store that stays with replicas that have what others stored in some tables, where one has.
    pub(crate) async fn on_complete_replicas(&self, tables: &[&str]) -> Self {
        let pinned = Self { client: self.client.pinned(), ..self.clone() };
        for shard in pinned.client.each_shard().await.unwrap_or_default() {
            // Otherwise it stays with the replica that is used.
            let _ = shard.choose_complete(tables).await;
        }
        pinned
    }

    /// Waits until the replica that is used has what other processors stored in some tables.
    ///
    /// # Errors
    /// When it does not get it in time, for example because a replica stopped that alone has some rows.
    pub async fn sync(&self, tables: &[&str]) -> Result<(), StoreError> {
        in_time(self.client.sync(tables)).await
    }

    /// Returns the deleted links added since a time, in milliseconds of ClickHouse's clock, each with its own time.
    pub async fn deleted_links(&self, since: i64) -> Result<Vec<(LinkId, i64)>, StoreError> {
        let rows: Vec<AddedLink> = in_time(
            self.client
                .query(
                    "SELECT link_id, toUnixTimestamp64Milli(added_at) AS added_at FROM deleted_links \
                     WHERE deleted_links.added_at >= fromUnixTimestamp64Milli(?, 'UTC')",
                )
                .bind(since)
                .fetch_all(),
        )
        .await?;
        Ok(rows.into_iter().map(|row| (LinkId::from_uuid(row.link_id), row.added_at)).collect())
    }

    /// Stores deleted links; links that are stored already do not change.
    pub async fn insert_deleted_links(&self, links: &[DeletedLink]) -> Result<(), StoreError> {
        let values = list(links.iter().map(|link| {
            let deleted_at = link.deleted_at.timestamp_millis();
            let workspace = link.workspace_id.map_or(Uuid::nil(), WorkspaceId::uuid);
            format!("('{}', fromUnixTimestamp64Milli({deleted_at}, 'UTC'), '{workspace}')", link.id.uuid())
        }));
        let insert = self
            .client
            .query(&format!("INSERT INTO deleted_links (link_id, deleted_at, workspace_id) VALUES {values}"))
            .with_setting("async_insert", "0");
        in_time(insert.execute()).await
    }

    /// Returns the offset that follows the stored records of each partition of the topics of links and conversions.
    pub async fn intake_positions(&self) -> Result<HashMap<(String, i32), i64>, StoreError> {
        let positions = "SELECT topic, partition, next FROM intake_positions FINAL";
        let rows: Vec<(String, i32, i64)> = in_time(self.client.query(positions).fetch_all()).await?;
        Ok(rows.into_iter().map(|(topic, partition, next)| ((topic, partition), next)).collect())
    }

    /// Stores the offsets that follow the stored records.
    pub async fn insert_intake_positions(&self, positions: &[(String, i32, i64)]) -> Result<(), StoreError> {
        let values = list(
            positions.iter().map(|(topic, partition, next)| format!("('{topic}', {partition}, {next})")),
        );
        let insert = self
            .client
            .query(&format!("INSERT INTO intake_positions (topic, partition, next) VALUES {values}"))
            .with_setting("async_insert", "0");
        in_time(insert.execute()).await
    }
}

/// Distinguishes a statement that its guard rejected from one whose outcome is unknown.
pub(crate) fn outcome_of(outcome: Result<(), StoreError>) -> Result<(), InsertError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(StoreError::Clickhouse(clickhouse::error::Error::BadResponse(text)))
            if text.starts_with(REFUSED) =>
        {
            Err(InsertError::Fenced)
        }
        Err(error) => Err(InsertError::InDoubt(error)),
    }
}

fn list(items: impl Iterator<Item = impl fmt::Display>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

async fn in_time<T>(
    statement: impl Future<Output = Result<T, clickhouse::error::Error>>,
) -> Result<T, StoreError> {
    within(TIMEOUT, statement).await
}

/// Waits for a statement's result, at most for `limit`.
pub(crate) async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, clickhouse::error::Error>>,
) -> Result<T, StoreError> {
    Ok(timeout(limit, statement).await.map_err(|_| StoreError::Timeout(limit))??)
}
