//! Idempotency keys and the answers kept under them, for 24 hours.

use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// Keys removed by one statement, so that none of them takes long.
const SWEEP_BATCH: i64 = 5_000;

/// The answer to the request that used a key first, and the digest of that request.
#[derive(sqlx::FromRow)]
pub(crate) struct Kept {
    pub(crate) request_sha256: Vec<u8>,
    pub(crate) status: i16,
    pub(crate) body: String,
    pub(crate) location: Option<String>,
}

/// Returns whether a workspace has used a key in the last 24 hours.
pub(crate) async fn is_known(pool: &PgPool, workspace: Uuid, key: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM idempotency_keys WHERE workspace_id = $1 AND key = $2
                        AND created_at > now() - interval '24 hours')",
    )
    .bind(workspace)
    .bind(key)
    .fetch_one(pool)
    .await
}

/// Takes a key for the transaction, or returns what is kept under it.
///
/// Waits for a transaction that holds the key at this moment. An expired key counts as unused.
pub(crate) async fn claim(
    transaction: &mut PgConnection,
    workspace: Uuid,
    key: &str,
    request_sha256: &[u8; 32],
) -> sqlx::Result<Option<Kept>> {
    let taken = sqlx::query(
        "INSERT INTO idempotency_keys AS k (workspace_id, key, request_sha256, created_at)
         VALUES ($1, $2, $3, now())
         ON CONFLICT (workspace_id, key) DO UPDATE
            SET request_sha256 = excluded.request_sha256, created_at = excluded.created_at,
                status = NULL, body = NULL, location = NULL
            WHERE k.created_at <= now() - interval '24 hours'",
    )
    .bind(workspace)
    .bind(key)
    .bind(&request_sha256[..])
    .execute(&mut *transaction)
    .await?;
    if taken.rows_affected() == 1 {
        return Ok(None);
    }
    let kept = sqlx::query_as(
        "SELECT request_sha256, status, body, location FROM idempotency_keys
         WHERE workspace_id = $1 AND key = $2",
    )
    .bind(workspace)
    .bind(key)
    .fetch_one(transaction)
    .await?;
    Ok(Some(kept))
}

/// Keeps an answer under the key that the transaction has claimed.
pub(crate) async fn keep(
    transaction: &mut PgConnection,
    workspace: Uuid,
    key: &str,
    status: i16,
    body: &str,
    location: Option<&str>,
) -> sqlx::Result<()> {
    sqlx::query(
        "UPDATE idempotency_keys SET status = $3, body = $4, location = $5
         WHERE workspace_id = $1 AND key = $2",
    )
    .bind(workspace)
    .bind(key)
    .bind(status)
    .bind(body)
    .bind(location)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Removes keys that are no longer honoured. Returns how many.
pub(crate) async fn remove_expired(connection: &mut PgConnection) -> sqlx::Result<u64> {
    let mut count = 0;
    loop {
        // A request that has found its key holds the row until it has read the answer.
        let removed = sqlx::query(
            "DELETE FROM idempotency_keys WHERE (workspace_id, key) IN (
                 SELECT workspace_id, key FROM idempotency_keys
                 WHERE created_at < now() - interval '24 hours'
                 ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)",
        )
        .bind(SWEEP_BATCH)
        .execute(&mut *connection)
        .await?;
        count += removed.rows_affected();
        if removed.rows_affected() < SWEEP_BATCH.unsigned_abs() {
            return Ok(count);
        }
    }
}
