//! The queue of deliveries: due deliveries and leases.

use std::time::Duration;

use bytes::Bytes;
use schemas::id::{AccountId, EndpointId, WorkspaceId};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row as _};
use tokio::time::Instant;
use uuid::Uuid;

use crate::attempt::Claimed;

/// A lease to take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease {
    /// The number of the leasing dispatcher.
    pub(crate) by: i32,
    /// The lease's token. An outcome counts only while the row still has it.
    pub(crate) token: Uuid,
    /// The duration of the lease.
    pub(crate) lasts: Duration,
    /// A time before the lease begins, by this process's clock. It may begin later, if Postgres is slow, but not
    /// earlier.
    pub(crate) since: Instant,
}

/// Permits for an endpoint's next claim, which are in use already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The endpoint whose deliveries to claim.
    pub(crate) endpoint_id: EndpointId,
    /// The maximum number of deliveries.
    pub(crate) slots: usize,
    /// The maximum number of first attempts among them.
    pub(crate) firsts: usize,
}

/// An endpoint with deliveries that are due and not leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// The endpoint.
    pub(crate) endpoint_id: EndpointId,
    /// Its account.
    pub(crate) account_id: AccountId,
    /// How long its oldest retry has been due.
    pub(crate) retry: Option<Duration>,
    /// How long its oldest first attempt has been due.
    pub(crate) first: Option<Duration>,
}

/// Finds due deliveries: new ones, retries, and those whose lease has expired.
pub(crate) async fn backlog(pool: &PgPool) -> sqlx::Result<Vec<Waiting>> {
    let rows = sqlx::query(concat!(
        with_endpoints_of!("webhook_deliveries"),
        " SELECT e.id, a.id AS account_id, extract(epoch FROM now() - retry.due_at)::float8 AS retry,
                extract(epoch FROM now() - first.due_at)::float8 AS first
         FROM endpoint
         JOIN webhook_endpoints e ON e.id = endpoint.id AND e.status = 'enabled'
         JOIN workspaces w ON w.id = e.workspace_id
         JOIN accounts a ON a.id = w.account_id AND a.suspended_at IS NULL
         LEFT JOIN LATERAL (
             SELECT d.due_at FROM webhook_deliveries d
             WHERE d.endpoint_id = endpoint.id AND d.is_retry AND d.due_at <= now()
               AND (d.lease_until IS NULL OR d.lease_until <= now())
             ORDER BY d.due_at LIMIT 1
         ) AS retry ON true
         LEFT JOIN LATERAL (
             SELECT d.due_at FROM webhook_deliveries d
             WHERE d.endpoint_id = endpoint.id AND NOT d.is_retry AND d.due_at <= now()
               AND (d.lease_until IS NULL OR d.lease_until <= now())
             ORDER BY d.due_at LIMIT 1
         ) AS first ON true
         WHERE retry.due_at IS NOT NULL OR first.due_at IS NOT NULL",
    ))
    // Postgres caches the plan of a prepared statement without parameters, whatever `plan_cache_mode` is.
    .persistent(false)
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Waiting {
                endpoint_id: EndpointId::from_uuid(row.try_get("id")?),
                account_id: AccountId::from_uuid(row.try_get("account_id")?),
                retry: waited(row, "retry")?,
                first: waited(row, "first")?,
            })
        })
        .collect()
}

fn waited(row: &PgRow, column: &str) -> sqlx::Result<Option<Duration>> {
    let seconds: Option<f64> = row.try_get(column)?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}

/// Leases due deliveries, for each endpoint at most as many as granted: retries before first attempts, and the oldest
/// first.
///
/// No other caller gets a delivery while its lease lasts.
pub(crate) async fn claim(pool: &PgPool, grants: &[Grant], lease: Lease) -> sqlx::Result<Vec<Claimed>> {
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let rows = sqlx::query(
        "WITH claimed AS (
         UPDATE webhook_deliveries d
         SET lease_until = now() + make_interval(secs => $4), lease_token = $5, leased_by = $6
         -- An array, for how many there are is not known to the planner: a join would read the whole queue.
         WHERE d.delivery_id = ANY (ARRAY(
             SELECT one.delivery_id
             FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS granted (endpoint_id, slots, firsts)
             CROSS JOIN LATERAL (
                 SELECT retries.delivery_id FROM (
                     SELECT d.delivery_id FROM webhook_deliveries d
                     WHERE d.endpoint_id = granted.endpoint_id AND d.is_retry AND d.due_at <= now()
                       AND (d.lease_until IS NULL OR d.lease_until <= now())
                     ORDER BY d.due_at LIMIT granted.slots
                     FOR UPDATE SKIP LOCKED
                 ) AS retries
                 UNION ALL
                 SELECT firsts.delivery_id FROM (
                     SELECT d.delivery_id FROM webhook_deliveries d
                     WHERE d.endpoint_id = granted.endpoint_id AND NOT d.is_retry AND d.due_at <= now()
                       AND (d.lease_until IS NULL OR d.lease_until <= now())
                     ORDER BY d.due_at LIMIT granted.firsts
                     FOR UPDATE SKIP LOCKED
                 ) AS firsts
                 LIMIT granted.slots
             ) AS one
         ))
         RETURNING d.*)
         SELECT delivery_id, endpoint_id, workspace_id, epoch, event, body, created_at, is_remembered, is_redelivery,
                attempts, (SELECT w.account_id FROM workspaces w WHERE w.id = workspace_id) AS account_id
         FROM claimed ORDER BY is_retry DESC, due_at",
    )
    .bind(grants.iter().map(|grant| grant.endpoint_id.uuid()).collect::<Vec<_>>())
    .bind(grants.iter().map(|grant| count(grant.slots)).collect::<Vec<_>>())
    .bind(grants.iter().map(|grant| count(grant.firsts)).collect::<Vec<_>>())
    .bind(lease.lasts.as_secs_f64())
    .bind(lease.token)
    .bind(lease.by)
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let attempts: i16 = row.try_get("attempts")?;
            let body: Vec<u8> = row.try_get("body")?;
            Ok(Claimed {
                delivery_id: row.try_get("delivery_id")?,
                endpoint_id: EndpointId::from_uuid(row.try_get("endpoint_id")?),
                workspace_id: WorkspaceId::from_uuid(row.try_get("workspace_id")?),
                // None after the account is deleted; then it is not sent.
                account_id: AccountId::from_uuid(
                    row.try_get::<Option<Uuid>, _>("account_id")?.unwrap_or_default(),
                ),
                epoch: row.try_get("epoch")?,
                event: row.try_get("event")?,
                body: Bytes::from(body),
                created_at: row.try_get("created_at")?,
                is_remembered: row.try_get("is_remembered")?,
                is_redelivery: row.try_get("is_redelivery")?,
                attempt: u16::try_from(attempts).unwrap_or(0) + 1,
                lease_token: lease.token,
                leased_at: lease.since,
            })
        })
        .collect()
}

/// Releases leases, so that another dispatcher need not wait until they expire.
pub(crate) async fn release(pool: &PgPool, leases: impl Iterator<Item = (Uuid, Uuid)>) -> sqlx::Result<()> {
    let (ids, tokens): (Vec<Uuid>, Vec<Uuid>) = leases.unzip();
    sqlx::query(
        "UPDATE webhook_deliveries d SET lease_until = NULL, lease_token = NULL, leased_by = NULL
         FROM unnest($1::uuid[], $2::uuid[]) AS held (delivery_id, lease_token)
         WHERE d.delivery_id = held.delivery_id AND d.lease_token = held.lease_token",
    )
    .bind(ids)
    .bind(tokens)
    .execute(pool)
    .await
    .map(drop)
}
