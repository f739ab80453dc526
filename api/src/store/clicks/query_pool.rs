//! A pool for queries, with limits on concurrency, time, memory and threads.

use std::sync::Arc;
use std::time::Duration;

use clickhouse::error::{Error, Result};
use clickhouse::query::Query;
use service::clickhouse::Clickhouse;
use service::http::ApiError;
use uuid::Uuid;

use super::recent::Recent;
use crate::store::permits::Permits;

/// Concurrent requests of all workspaces in one pool of an instance.
const ALL_PERMITS: usize = 32;

/// Threads of one query, so that few queries cannot occupy a machine.
const THREADS: u64 = 2;

/// Longest query, in bytes: room for a hundred values of two kilobytes with every byte escaped.
const QUERY_SIZE: u64 = 4 << 20;

/// Queries to ClickHouse within limits.
pub(crate) struct QueryPool {
    pub(super) client: Clickhouse,
    permits: Permits,
    bound: Duration,
    pub(super) recent: Arc<Recent>,
}

/// A query without an answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error("ClickHouse did not answer within {} seconds", .0.as_secs_f32())]
    Slow(Duration),
    #[error("ClickHouse did not answer")]
    Failed(#[from] Error),
}

/// Returns the answer, or logs the error.
pub(crate) fn known<T>(answer: std::result::Result<T, QueryError>) -> Option<T> {
    answer
        .inspect_err(|error| {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "cannot read counters; answering without them"
            );
        })
        .ok()
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        Self::unavailable(error)
    }
}

impl QueryPool {
    pub(super) fn new(
        client: &Clickhouse,
        recent: &Arc<Recent>,
        per_workspace: usize,
        bound: Duration,
        memory: u64,
    ) -> Self {
        let settings = [
            ("max_execution_time", bound.as_secs().max(1)),
            ("max_memory_usage", memory),
            ("max_threads", THREADS),
            ("max_query_size", QUERY_SIZE),
            // Cancels queries whose caller has gone.
            ("cancel_http_readonly_queries_on_client_close", 1),
            // Only reads; settings are allowed.
            ("readonly", 2),
        ];
        let client = settings
            .into_iter()
            .fold(client.clone(), |client, (name, value)| client.with_setting(name, value.to_string()));
        let permits = Permits::new(per_workspace, ALL_PERMITS);
        Self { client, permits, bound, recent: Arc::clone(recent) }
    }

    /// Runs the queries of a request once the workspace has a permit.
    ///
    /// # Errors
    /// [`QueryError`] when it fails, or takes longer than the pool's timeout including the wait.
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

    /// Runs an optional part of a request, within half of the pool's timeout.
    ///
    /// # Errors
    /// [`QueryError`] when it fails or takes longer.
    pub(crate) async fn with_half_timeout<T>(
        &self,
        part: impl Future<Output = Result<T>>,
    ) -> std::result::Result<T, QueryError> {
        let bound = self.bound / 2;
        Ok(tokio::time::timeout(bound, part).await.map_err(|_| QueryError::Slow(bound))??)
    }

    /// Returns a query without placeholders.
    pub(super) fn query(&self, sql: &str) -> Query {
        self.client.query_raw(sql)
    }
}
