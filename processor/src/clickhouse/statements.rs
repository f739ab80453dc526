//! Statements that have time: those of upkeep and of operators' commands.

use std::fmt;
use std::time::Duration;

use clickhouse::error::Error;
use clickhouse::query::{Query, RowCursor};
use clickhouse::{Client, RowOwned, RowRead};

use super::{StoreError, within};

/// How long ClickHouse may take for one statement before its answer counts as lost.
const LIMIT: Duration = Duration::from_secs(3_600);

/// Memory at which sorting and grouping go on on the disk.
const MEMORY: &str = "268435456";

/// Runs statements that we have written as text, without placeholders.
#[derive(Clone)]
pub(crate) struct Statements {
    pub(crate) client: Client,
}

impl fmt::Debug for Statements {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Statements").finish_non_exhaustive()
    }
}

impl Statements {
    /// Gives a client the settings of statements that have time, as those who ask for counts have not.
    pub(crate) fn new(client: Client) -> Self {
        let client = client
            .with_setting("async_insert", "0")
            .with_setting("max_execution_time", LIMIT.as_secs().to_string())
            .with_setting("max_threads", "2")
            .with_setting("max_insert_threads", "1")
            .with_setting("max_bytes_before_external_group_by", MEMORY)
            .with_setting("max_bytes_before_external_sort", MEMORY)
            .with_setting("mutations_sync", "1")
            .with_setting("lightweight_deletes_sync", "1");
        Self { client }
    }

    /// Prepares a statement.
    pub(crate) fn query(&self, sql: &str) -> Query {
        self.client.query(&sql.replace('?', "??"))
    }

    /// Runs a statement.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), StoreError> {
        // Not for answers with rows: the server would keep them all until the last one is there.
        in_time(self.query(sql).with_setting("wait_end_of_query", "1").execute()).await
    }

    /// Returns the one row of an answer.
    pub(crate) async fn fetch_one<T: RowOwned + RowRead>(&self, sql: &str) -> Result<T, StoreError> {
        in_time(self.query(sql).fetch_one()).await
    }

    /// Returns all rows of an answer.
    pub(crate) async fn fetch_all<T: RowOwned + RowRead>(&self, sql: &str) -> Result<Vec<T>, StoreError> {
        in_time(self.query(sql).fetch_all()).await
    }

    /// Returns the rows of an answer one after the other, each in time; see [`next`].
    pub(crate) fn fetch<T: RowOwned>(&self, sql: &str) -> Result<RowCursor<T>, StoreError> {
        // However long they are read: whoever reads them may have something else to wait for.
        Ok(self.query(sql).with_setting("max_execution_time", "0").fetch()?)
    }
}

/// Returns the next row of an answer.
pub(crate) async fn next<T: RowOwned + RowRead>(rows: &mut RowCursor<T>) -> Result<Option<T>, StoreError> {
    in_time(rows.next()).await
}

/// Waits for a statement's result, but not for ever.
pub(crate) async fn in_time<T>(statement: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
    within(LIMIT, statement).await
}
