//! Statements that may take long: those of upkeep and of the operators' commands.

use std::fmt;
use std::time::Duration;

use clickhouse::error::Error;
use clickhouse::query::{Query, RowCursor};
use clickhouse::{RowOwned, RowRead};
use service::clickhouse::Clickhouse;

use super::{StoreError, within};

/// How long a statement may take before its answer counts as lost.
const LIMIT: Duration = Duration::from_secs(3_600);

/// Bytes of memory from which sorting and grouping use the disk.
const RECENT_PERIOD: &str = "268435456";

/// Runs statements that are complete text, without placeholders.
#[derive(Clone)]
pub(crate) struct Statements {
    pub(crate) client: Clickhouse,
}

impl fmt::Debug for Statements {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Statements").finish_non_exhaustive()
    }
}

impl Statements {
    /// Adds the settings of long statements to a client.
    pub(crate) fn new(client: Clickhouse) -> Self {
        let client = client
            .with_setting("async_insert", "0")
            .with_setting("max_execution_time", LIMIT.as_secs().to_string())
            .with_setting("max_threads", "2")
            .with_setting("max_insert_threads", "1")
            .with_setting("max_bytes_before_external_group_by", RECENT_PERIOD)
            .with_setting("max_bytes_before_external_sort", RECENT_PERIOD)
            .with_setting("mutations_sync", "2")
            .with_setting("lightweight_deletes_sync", "2");
        Self { client }
    }

    /// Returns those for the tables of each shard; of a single server, its own.
    pub(crate) async fn each_shard(&self) -> Result<Vec<Self>, StoreError> {
        let of_each = self.client.each_shard().await?;
        Ok(of_each.into_iter().map(|client| Self { client }).collect())
    }

    /// Prepares a statement.
    pub(crate) fn query(&self, sql: &str) -> Query {
        self.client.query(&sql.replace('?', "??"))
    }

    /// Runs a statement.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), StoreError> {
        // Not for statements that return rows: the server would buffer all of them.
        in_time(self.query(sql).with_setting("wait_end_of_query", "1").execute()).await
    }

    /// Returns the only row of the result.
    pub(crate) async fn fetch_one<T: RowOwned + RowRead>(&self, sql: &str) -> Result<T, StoreError> {
        in_time(self.query(sql).fetch_one()).await
    }

    /// Returns all rows of the result.
    pub(crate) async fn fetch_all<T: RowOwned + RowRead>(&self, sql: &str) -> Result<Vec<T>, StoreError> {
        in_time(self.query(sql).fetch_all()).await
    }

    /// Returns a cursor over the rows of the result; see [`next`].
    pub(crate) fn fetch<T: RowOwned>(&self, sql: &str) -> Result<RowCursor<T>, StoreError> {
        // Without a limit for the whole result, because the reader may have to wait between rows.
        Ok(self.query(sql).with_setting("max_execution_time", "0").fetch()?)
    }
}

/// Returns the next row of a cursor.
pub(crate) async fn next<T: RowOwned + RowRead>(rows: &mut RowCursor<T>) -> Result<Option<T>, StoreError> {
    in_time(rows.next()).await
}

/// Waits for a statement's result, at most for the limit.
pub(crate) async fn in_time<T>(statement: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
    within(LIMIT, statement).await
}
