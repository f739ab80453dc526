//! Where queries are asked: in turn, and within bounds of time, memory and threads.

use std::time::Duration;

use clickhouse::Client;
use clickhouse::error::{Error, Result};
use clickhouse::query::Query;
use service::http::ApiError;
use uuid::Uuid;

use super::permits::Permits;
use super::recent::Recent;

/// Requests of all workspaces that one instance has at a time at each queries.
const ALL_PERMITS: usize = 32;

/// Threads of one query: more would let few queries fill a machine, and on two cores be slower themselves.
const THREADS: u64 = 2;

/// Longest query, in bytes. A hundred values of two kilobytes, each byte of them escaped, fit in.
const QUERY_SIZE: u64 = 4 << 20;

/// A place to ask ClickHouse.
pub(crate) struct QueryPool {
    client: Client,
    permits: Permits,
    bound: Duration,
    pub(super) recent: Recent,
}

/// Why ClickHouse did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error("ClickHouse did not answer within {} seconds", .0.as_secs_f32())]
    Slow(Duration),
    #[error("ClickHouse did not answer")]
    Failed(#[from] Error),
}

/// What was answered; why it was not is in the log.
pub(crate) fn known<T>(answer: std::result::Result<T, QueryError>) -> Option<T> {
    answer
        .inspect_err(|error| {
            tracing::warn!(error = error as &dyn std::error::Error, "Counters are not known");
        })
        .ok()
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        Self::unavailable(error)
    }
}

impl QueryPool {
    pub(super) fn new(client: &Client, per_workspace: usize, bound: Duration, memory: u64) -> Self {
        let settings = [
            ("max_execution_time", bound.as_secs().max(1)),
            ("max_memory_usage", memory),
            ("max_threads", THREADS),
            ("max_query_size", QUERY_SIZE),
            // Nobody waits for the answer any more.
            ("cancel_http_readonly_queries_on_client_close", 1),
            // Reads only, and may have settings.
            ("readonly", 2),
        ];
        let client = settings
            .into_iter()
            .fold(client.clone(), |client, (name, value)| client.with_setting(name, value.to_string()));
        Self { client, permits: Permits::new(per_workspace, ALL_PERMITS), bound, recent: Recent::default() }
    }

    /// Does what a request needs of ClickHouse when it is the workspace's turn.
    ///
    /// # Errors
    /// [`QueryError`] when it fails, or takes longer than the queries's bound with the wait for the turn.
    pub(crate) async fn with_permit<T>(
        &self,
        workspace: Uuid,
        work: impl Future<Output = Result<T>>,
    ) -> std::result::Result<T, QueryError> {
        let with_permit = async {
            let _permit = self.permits.take(workspace).await;
            work.await
        };
        Ok(tokio::time::timeout(self.bound, with_permit)
            .await
            .map_err(|_| QueryError::Slow(self.bound))??)
    }

    /// Does a part of a request that must not hold up the rest: in half of the queries's bound or not at all.
    ///
    /// # Errors
    /// [`QueryError`] when it fails or takes longer.
    pub(crate) async fn in_half<T>(
        &self,
        part: impl Future<Output = Result<T>>,
    ) -> std::result::Result<T, QueryError> {
        let bound = self.bound / 2;
        Ok(tokio::time::timeout(bound, part).await.map_err(|_| QueryError::Slow(bound))??)
    }

    /// A query, to the letter.
    pub(super) fn query(&self, sql: &str) -> Query {
        self.client.query_raw(sql)
    }
}
