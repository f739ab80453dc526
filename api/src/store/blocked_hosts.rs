//! Hosts that no destination may be on.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor, PgPool};

/// Reads all blocked hosts, sorted.
pub(crate) async fn all(executor: impl PgExecutor<'_>) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar("SELECT host FROM blocked_hosts ORDER BY host").fetch_all(executor).await
}

/// Reads all blocked hosts and since when, sorted.
pub(crate) async fn with_times(pool: &PgPool) -> sqlx::Result<Vec<(String, DateTime<Utc>)>> {
    sqlx::query_as("SELECT host, created_at FROM blocked_hosts ORDER BY host").fetch_all(pool).await
}

/// Blocks a host; false when it is blocked already.
pub(crate) async fn insert(transaction: &mut PgConnection, host: &str) -> sqlx::Result<bool> {
    let inserted = sqlx::query("INSERT INTO blocked_hosts (host) VALUES ($1) ON CONFLICT DO NOTHING")
        .bind(host)
        .execute(transaction)
        .await?;
    Ok(inserted.rows_affected() == 1)
}

/// Ends the block of a host, in all its stored spellings; false when it was not blocked.
pub(crate) async fn remove(transaction: &mut PgConnection, hosts: &[String]) -> sqlx::Result<bool> {
    let removed = sqlx::query("DELETE FROM blocked_hosts WHERE host = ANY($1)")
        .bind(hosts)
        .execute(transaction)
        .await?;
    Ok(removed.rows_affected() > 0)
}
