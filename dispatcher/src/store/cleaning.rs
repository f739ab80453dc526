//! Removes rows that are no longer needed, in small statements.

use std::time::Duration;

use sqlx::{PgPool, Postgres, Transaction};

/// Maximum rows of one statement, so that none runs long.
const MAX_ROWS: i64 = 5_000;

/// The class of these advisory locks, different from all others in the database.
const CLASS: i32 = 0x0d16;

/// The locks of the two tasks.
const CLEANING: i32 = 0;
const FULL: i32 = 1;

/// The longest time until a delivery can be due: a wait of 15 minutes that its receiver requested, plus a margin.
const MAX_WAIT: Duration = Duration::from_secs(20 * 60);

/// Continues [`with_endpoints_of`] with `share`: how many rows each endpoint has (`rows`, counted up to `$1`), and how
/// many it may have (`most`).
///
/// That is `$1`, unless the endpoints of its account have more than ten times as many together. Then it is less for the
/// longest, which have equal parts of what the others leave. With the endpoints in the order of their rows, each would
/// get an equal part of what the shorter ones leave; the largest such part is the level.
macro_rules! with_shares_of {
    ($table:literal) => {
        concat!(
            with_endpoints_of!($table),
            ", counted AS MATERIALIZED (
                 SELECT e.id, w.account_id, n.rows
                 FROM endpoint
                 JOIN webhook_endpoints e ON e.id = endpoint.id
                 JOIN workspaces w ON w.id = e.workspace_id
                 CROSS JOIN LATERAL (
                     SELECT count(*) AS rows
                     FROM (SELECT FROM ",
            $table,
            " t WHERE t.endpoint_id = e.id LIMIT $1) AS t
                 ) AS n
             ),
             part AS (
                 SELECT id, account_id, rows,
                        (10 * $1 - coalesce(sum(rows) OVER shorter, 0))
                            / (count(*) OVER account - row_number() OVER ascending + 1) AS level
                 FROM counted
                 WINDOW account AS (PARTITION BY account_id),
                        ascending AS (PARTITION BY account_id ORDER BY rows, id),
                        shorter AS (PARTITION BY account_id ORDER BY rows, id
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
             ),
             share AS (
                 SELECT id, rows,
                        greatest(1, least($1, floor(max(level) OVER (PARTITION BY account_id))))::bigint AS most
                 FROM part
             )"
        )
    };
}

/// Limits of the rows of one endpoint; the endpoints of an account share ten times as many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum deliveries in its queue, and failed ones that can be sent again.
    pub(crate) queue: i64,
    /// Maximum failed attempts with a body; ten times as many are kept without.
    pub(crate) failures: i64,
}

/// Removes deliveries that will not be sent and, when `thorough`, rows that have expired, exceed the limits, or belong
/// to deleted endpoints.
///
/// One dispatcher at a time does it. Returns whether more rows remain.
pub(crate) async fn clean(pool: &PgPool, limits: Limits, thorough: bool) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    if !try_lock(&mut transaction, CLEANING).await? {
        return Ok(false);
    }
    let mut most = purge(&mut transaction).await?;
    if thorough {
        most = most.max(failures(&mut transaction).await?);
        most = most.max(requests(&mut transaction).await?);
        most = most.max(bodies_above(&mut transaction, limits.failures).await?);
        most = most.max(failures_above(&mut transaction, 10 * limits.failures).await?);
        most = most.max(requests_above(&mut transaction, limits.queue).await?);
        most = most.max(failures_of_nobody(&mut transaction).await?);
        most = most.max(requests_of_nobody(&mut transaction).await?);
        most = most.max(finished(&mut transaction).await?);
        health_of_nobody(&mut transaction).await?;
        pull_forward(&mut transaction).await?;
    }
    transaction.commit().await?;
    Ok(most >= MAX_ROWS as u64)
}

/// Takes a task for the transaction; false when another dispatcher has it.
async fn try_lock(transaction: &mut Transaction<'_, Postgres>, task: i32) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1, $2)")
        .bind(CLASS)
        .bind(task)
        .fetch_one(&mut **transaction)
        .await
}

/// Removes deliveries to endpoints that are deleted or disabled, or whose plan has no webhooks.
async fn purge(transaction: &mut Transaction<'_, Postgres>) -> sqlx::Result<u64> {
    sqlx::query(concat!(
        with_endpoints_of!("webhook_deliveries"),
        ", unsendable AS MATERIALIZED (
             SELECT id FROM endpoint WHERE NOT EXISTS (
                 SELECT FROM webhook_endpoints e
                 JOIN workspaces w ON w.id = e.workspace_id
                 JOIN accounts a ON a.id = w.account_id
                 WHERE e.id = endpoint.id AND e.status = 'enabled' AND a.plan IN ('agency', 'business')
             )
         )
         DELETE FROM webhook_deliveries WHERE delivery_id IN (
             SELECT d.delivery_id FROM unsendable JOIN webhook_deliveries d ON d.endpoint_id = unsendable.id
             LIMIT $1
             FOR UPDATE OF d SKIP LOCKED
         )",
    ))
    .bind(MAX_ROWS)
    .execute(&mut **transaction)
    .await
    .map(|done| done.rows_affected())
}

/// Notes which queues are full, so that no event is added to them; see [`with_shares_of`]. One dispatcher at a time
/// does it.
///
/// Counting stops at the limit, so it reads at most that many entries of the index for each endpoint.
pub(crate) async fn note_full(pool: &PgPool, limit: i64) -> sqlx::Result<()> {
    let mut transaction = pool.begin().await?;
    if !try_lock(&mut transaction, FULL).await? {
        return Ok(());
    }
    sqlx::query(concat!(
        with_shares_of!("webhook_deliveries"),
        ", filled AS MATERIALIZED (SELECT id FROM share WHERE rows >= most),
         emptied AS (
             UPDATE webhook_health SET is_full = false
             WHERE is_full AND endpoint_id NOT IN (SELECT id FROM filled)
         )
         INSERT INTO webhook_health AS h (endpoint_id, is_full) SELECT id, true FROM filled ORDER BY id
         ON CONFLICT (endpoint_id) DO UPDATE SET is_full = true WHERE NOT h.is_full",
    ))
    .bind(limit)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await
}

/// Removes the bodies of the answers to all failed attempts of an endpoint but the newest; see [`with_shares_of`].
async fn bodies_above(transaction: &mut Transaction<'_, Postgres>, limit: i64) -> sqlx::Result<u64> {
    sqlx::query(concat!(
        with_shares_of!("webhook_failures"),
        " UPDATE webhook_failures SET response_body = '' WHERE id IN (
             SELECT old.id FROM share CROSS JOIN LATERAL (
                 SELECT f.id, f.response_body FROM webhook_failures f WHERE f.endpoint_id = share.id
                 ORDER BY f.attempted_at DESC, f.id DESC OFFSET share.most
             ) AS old
             WHERE share.rows >= share.most AND old.response_body <> '' LIMIT $2
         )",
    ))
    .bind(limit)
    .bind(MAX_ROWS)
    .execute(&mut **transaction)
    .await
    .map(|done| done.rows_affected())
}

/// Removes all failed attempts of an endpoint but the newest; see [`with_shares_of`].
async fn failures_above(transaction: &mut Transaction<'_, Postgres>, limit: i64) -> sqlx::Result<u64> {
    sqlx::query(concat!(
        with_shares_of!("webhook_failures"),
        " DELETE FROM webhook_failures WHERE id IN (
             SELECT old.id FROM share CROSS JOIN LATERAL (
                 SELECT f.id FROM webhook_failures f WHERE f.endpoint_id = share.id
                 ORDER BY f.attempted_at DESC, f.id DESC OFFSET share.most LIMIT $2
             ) AS old
             WHERE share.rows >= share.most LIMIT $2
         )",
    ))
    .bind(limit)
    .bind(MAX_ROWS)
    .execute(&mut **transaction)
    .await
    .map(|done| done.rows_affected())
}

/// Removes the requests of all failed deliveries of an endpoint but the newest; see [`with_shares_of`].
async fn requests_above(transaction: &mut Transaction<'_, Postgres>, limit: i64) -> sqlx::Result<u64> {
    sqlx::query(concat!(
        with_shares_of!("webhook_failed_deliveries"),
        " DELETE FROM webhook_failed_deliveries WHERE delivery_id IN (
             SELECT old.delivery_id FROM share CROSS JOIN LATERAL (
                 SELECT f.delivery_id FROM webhook_failed_deliveries f WHERE f.endpoint_id = share.id
                 ORDER BY f.failed_at DESC OFFSET share.most LIMIT $2
             ) AS old
             WHERE share.rows >= share.most LIMIT $2
         )",
    ))
    .bind(limit)
    .bind(MAX_ROWS)
    .execute(&mut **transaction)
    .await
    .map(|done| done.rows_affected())
}

/// Removes failed attempts that are older than 7 days.
async fn failures(transaction: &mut Transaction<'_, Postgres>) -> sqlx::Result<u64> {
    sqlx::query(
        "DELETE FROM webhook_failures WHERE id IN (
             SELECT id FROM webhook_failures WHERE attempted_at < now() - interval '7 days' LIMIT $1
         )",
    )
    .bind(MAX_ROWS)
    .execute(&mut **transaction)
    .await
    .map(|done| done.rows_affected())
}

/// Removes the requests of deliveries whose last failure is more than 7 days ago.
async fn requests(transaction: &mut Transaction<'_, Postgres>) -> sqlx::Result<u64> {
    sqlx::query(
        "DELETE FROM webhook_failed_deliveries WHERE delivery_id IN (
             SELECT delivery_id FROM webhook_failed_deliveries WHERE failed_at < now() - interval '7 days' LIMIT $1
         )",
    )
    .bind(MAX_ROWS)
    .execute(&mut **transaction)
    .await
    .map(|done| done.rows_affected())
}

/// Removes the failed attempts of deleted endpoints.
async fn failures_of_nobody(transaction: &mut Transaction<'_, Postgres>) -> sqlx::Result<u64> {
    sqlx::query(concat!(
        with_endpoints_of!("webhook_failures"),
        ", gone AS MATERIALIZED (
             SELECT id FROM endpoint
             WHERE NOT EXISTS (SELECT FROM webhook_endpoints e WHERE e.id = endpoint.id)
         )
         DELETE FROM webhook_failures WHERE id IN (
             SELECT t.id FROM gone JOIN webhook_failures t ON t.endpoint_id = gone.id LIMIT $1
         )",
    ))
    .bind(MAX_ROWS)
    .execute(&mut **transaction)
    .await
    .map(|done| done.rows_affected())
}

/// Removes the requests of deleted endpoints.
async fn requests_of_nobody(transaction: &mut Transaction<'_, Postgres>) -> sqlx::Result<u64> {
    sqlx::query(concat!(
        with_endpoints_of!("webhook_failed_deliveries"),
        ", gone AS MATERIALIZED (
             SELECT id FROM endpoint
             WHERE NOT EXISTS (SELECT FROM webhook_endpoints e WHERE e.id = endpoint.id)
         )
         DELETE FROM webhook_failed_deliveries WHERE delivery_id IN (
             SELECT t.delivery_id FROM gone JOIN webhook_failed_deliveries t ON t.endpoint_id = gone.id
             LIMIT $1
         )",
    ))
    .bind(MAX_ROWS)
    .execute(&mut **transaction)
    .await
    .map(|done| done.rows_affected())
}

/// Removes records of deliveries that ended more than 24 hours ago.
async fn finished(transaction: &mut Transaction<'_, Postgres>) -> sqlx::Result<u64> {
    sqlx::query(
        "DELETE FROM webhook_finished WHERE delivery_id IN (
             SELECT delivery_id FROM webhook_finished WHERE finished_at < now() - interval '24 hours' LIMIT $1
         )",
    )
    .bind(MAX_ROWS)
    .execute(&mut **transaction)
    .await
    .map(|done| done.rows_affected())
}

/// Removes the last success and failure of deleted endpoints. There is one row per endpoint, so one statement removes
/// all.
async fn health_of_nobody(transaction: &mut Transaction<'_, Postgres>) -> sqlx::Result<()> {
    sqlx::query(
        "DELETE FROM webhook_health h
         WHERE NOT EXISTS (SELECT FROM webhook_endpoints e WHERE e.id = h.endpoint_id)",
    )
    .execute(&mut **transaction)
    .await
    .map(drop)
}

/// Makes deliveries due that are due later than any wait allows, because the database's clock was ahead when they were
/// delayed.
async fn pull_forward(transaction: &mut Transaction<'_, Postgres>) -> sqlx::Result<()> {
    sqlx::query(concat!(
        with_endpoints_of!("webhook_deliveries"),
        " UPDATE webhook_deliveries
         SET due_at = now(), lease_until = NULL, lease_token = NULL, leased_by = NULL
         WHERE delivery_id IN (
             SELECT late.delivery_id FROM endpoint
             CROSS JOIN (VALUES (true), (false)) AS kind (is_retry)
             CROSS JOIN LATERAL (
                 SELECT d.delivery_id FROM webhook_deliveries d
                 WHERE d.endpoint_id = endpoint.id AND d.is_retry = kind.is_retry
                   AND d.due_at > now() + make_interval(secs => $1)
                 LIMIT 100
             ) AS late
         )",
    ))
    .bind(MAX_WAIT.as_secs_f64())
    .execute(&mut **transaction)
    .await
    .map(drop)
}
