//! The dispatcher's SQL: one statement or one named transaction per function.
//!
//! Times that decide something are the database's, so that the clocks of several dispatchers need not agree.

mod settle;

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use schemas::id::{EndpointId, WorkspaceId};
use schemas::message::Delivery;
use sqlx::{PgPool, Postgres, Row as _, Transaction};
use uuid::Uuid;

pub(crate) use settle::{DISABLED_AT, Finished, Settled, settle};

use crate::{
    attempt::{Claimed, Target},
    endpoints::Endpoint,
    slots::Grant,
};

/// Reads the number that every change of an endpoint or a plan raises.
pub(crate) async fn endpoints_version(pool: &PgPool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT version FROM endpoints_version").fetch_one(pool).await
}

/// Reads the enabled endpoints of plans that have webhooks.
pub(crate) async fn enabled_endpoints(pool: &PgPool) -> sqlx::Result<Vec<Endpoint>> {
    let rows = sqlx::query(
        "SELECT e.id, e.workspace_id, e.events, e.click_classes, e.enabled_from
         FROM webhook_endpoints e
         JOIN workspaces w ON w.id = e.workspace_id
         JOIN accounts a ON a.id = w.account_id
         WHERE e.status = 'enabled' AND a.plan IN ('agency', 'business')",
    )
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Endpoint {
                id: EndpointId::from_uuid(row.try_get("id")?),
                workspace_id: WorkspaceId::from_uuid(row.try_get("workspace_id")?),
                events: row.try_get("events")?,
                click_classes: row.try_get("click_classes")?,
                enabled_from: row.try_get("enabled_from")?,
            })
        })
        .collect()
}

/// Reads up to where each partition of the deliveries' topic is stored; one that is not known yet starts at 0.
pub(crate) async fn next_offsets(pool: &PgPool, partitions: &[i32]) -> sqlx::Result<HashMap<i32, i64>> {
    // The row must be there before the first batch, which moves it only from where it is known to be.
    sqlx::query(
        "INSERT INTO webhook_offsets (partition_id, next_offset)
         SELECT partition, 0 FROM unnest($1::integer[]) AS partition ON CONFLICT DO NOTHING",
    )
    .bind(partitions)
    .execute(pool)
    .await?;
    let rows =
        sqlx::query("SELECT partition_id, next_offset FROM webhook_offsets WHERE partition_id = ANY($1)")
            .bind(partitions)
            .fetch_all(pool)
            .await?;
    rows.iter().map(|row| Ok((row.try_get("partition_id")?, row.try_get("next_offset")?))).collect()
}

/// How far one batch moves a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    /// The partition.
    pub(crate) partition: i32,
    /// Where it must be now.
    pub(crate) from: i64,
    /// Where it is afterwards.
    pub(crate) to: i64,
}

/// Another dispatcher has moved a partition: this one does not own it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fenced;

/// Stores deliveries together with the positions that they reach, or neither.
///
/// A delivery that is there already stays as it is.
pub(crate) async fn insert(
    pool: &PgPool,
    deliveries: &[Delivery],
    moves: &[Move],
) -> sqlx::Result<Result<(), Fenced>> {
    let mut transaction = pool.begin().await?;
    // First, so that a former owner of a partition waits here, and not with rows in its hands.
    if !move_offsets(&mut transaction, moves).await? {
        transaction.rollback().await?;
        return Ok(Err(Fenced));
    }
    let column = |id: fn(&Delivery) -> Uuid| deliveries.iter().map(id).collect::<Vec<Uuid>>();
    let events: Vec<&str> = deliveries.iter().map(|delivery| delivery.event.as_str()).collect();
    let bodies: Vec<&[u8]> = deliveries.iter().map(|delivery| delivery.body.as_bytes()).collect();
    let created: Vec<DateTime<Utc>> = deliveries.iter().map(|delivery| delivery.created_at).collect();
    sqlx::query(
        "INSERT INTO webhook_deliveries (delivery_id, endpoint_id, workspace_id, event, body, created_at, due_at)
         SELECT *, now() FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::bytea[], $6::timestamptz[])
         ON CONFLICT DO NOTHING",
    )
    .bind(column(|delivery| delivery.delivery_id))
    .bind(column(|delivery| delivery.endpoint_id.uuid()))
    .bind(column(|delivery| delivery.workspace_id.uuid()))
    .bind(events)
    .bind(bodies)
    .bind(created)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(Ok(()))
}

async fn move_offsets(transaction: &mut Transaction<'_, Postgres>, moves: &[Move]) -> sqlx::Result<bool> {
    let moved = sqlx::query(
        "UPDATE webhook_offsets o SET next_offset = m.target
         FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS m (partition_id, expected, target)
         WHERE o.partition_id = m.partition_id AND o.next_offset = m.expected",
    )
    .bind(moves.iter().map(|one| one.partition).collect::<Vec<_>>())
    .bind(moves.iter().map(|one| one.from).collect::<Vec<_>>())
    .bind(moves.iter().map(|one| one.to).collect::<Vec<_>>())
    .execute(&mut **transaction)
    .await?;
    Ok(moved.rows_affected() == moves.len() as u64)
}

/// What waits for its turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct Backlog {
    /// Endpoints with deliveries that are due and not leased.
    pub(crate) endpoints: Vec<EndpointId>,
    /// How long the one that waits longest has been due.
    pub(crate) oldest_due: Duration,
}

/// Looks for deliveries that are due: new ones, retries, and those whose lease ran out.
pub(crate) async fn backlog(pool: &PgPool) -> sqlx::Result<Backlog> {
    // From one endpoint to the next over the index: a distinct over all rows would read a dead endpoint's million.
    let rows = sqlx::query(
        "WITH RECURSIVE endpoint (id) AS (
             (SELECT endpoint_id FROM webhook_deliveries ORDER BY endpoint_id LIMIT 1)
             UNION ALL
             SELECT (SELECT endpoint_id FROM webhook_deliveries WHERE endpoint_id > endpoint.id
                     ORDER BY endpoint_id LIMIT 1)
             FROM endpoint WHERE endpoint.id IS NOT NULL
         )
         SELECT endpoint.id, extract(epoch FROM now() - due.due_at)::float8 AS waited
         FROM endpoint
         CROSS JOIN LATERAL (
             SELECT d.due_at FROM webhook_deliveries d
             WHERE d.endpoint_id = endpoint.id AND d.due_at <= now()
               AND (d.lease_until IS NULL OR d.lease_until <= now())
             ORDER BY d.due_at LIMIT 1
         ) AS due",
    )
    .fetch_all(pool)
    .await?;
    let mut backlog = Backlog::default();
    for row in rows {
        backlog.endpoints.push(EndpointId::from_uuid(row.try_get("id")?));
        let waited = Duration::try_from_secs_f64(row.try_get("waited")?).unwrap_or_default();
        backlog.oldest_due = backlog.oldest_due.max(waited);
    }
    Ok(backlog)
}

/// Leases deliveries that are due, for each endpoint at most what it was granted.
///
/// No two callers get the same delivery while its lease lasts.
pub(crate) async fn claim(
    pool: &PgPool,
    grants: &[Grant],
    lease: Duration,
    lease_token: Uuid,
) -> sqlx::Result<Vec<Claimed>> {
    let rows = sqlx::query(
        "WITH due AS (
             SELECT one.delivery_id
             FROM unnest($1::uuid[], $2::bigint[]) AS granted (endpoint_id, slots)
             CROSS JOIN LATERAL (
                 SELECT d.delivery_id FROM webhook_deliveries d
                 WHERE d.endpoint_id = granted.endpoint_id AND d.due_at <= now()
                   AND (d.lease_until IS NULL OR d.lease_until <= now())
                 ORDER BY d.due_at LIMIT granted.slots
                 FOR UPDATE SKIP LOCKED
             ) AS one
         )
         UPDATE webhook_deliveries d
         SET lease_until = now() + make_interval(secs => $3), lease_token = $4
         FROM due WHERE d.delivery_id = due.delivery_id
         RETURNING d.delivery_id, d.endpoint_id, d.event, d.body, d.attempts",
    )
    .bind(grants.iter().map(|grant| grant.endpoint_id.uuid()).collect::<Vec<_>>())
    .bind(grants.iter().map(|grant| i64::try_from(grant.slots).unwrap_or(i64::MAX)).collect::<Vec<_>>())
    .bind(lease.as_secs_f64())
    .bind(lease_token)
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let attempts: i16 = row.try_get("attempts")?;
            Ok(Claimed {
                delivery_id: row.try_get("delivery_id")?,
                endpoint_id: EndpointId::from_uuid(row.try_get("endpoint_id")?),
                event: row.try_get("event")?,
                body: row.try_get("body")?,
                attempt: u16::try_from(attempts).unwrap_or(0) + 1,
                lease_token,
            })
        })
        .collect()
}

/// Reads where endpoints' deliveries go now; one that is deleted, disabled or without a plan that has webhooks
/// is missing.
pub(crate) async fn targets(
    pool: &PgPool,
    endpoints: &[EndpointId],
) -> sqlx::Result<HashMap<EndpointId, Target>> {
    let rows = sqlx::query(
        "SELECT e.id, e.url, e.epoch, e.secret_key_id, e.secret_sealed
         FROM webhook_endpoints e
         JOIN workspaces w ON w.id = e.workspace_id
         JOIN accounts a ON a.id = w.account_id
         WHERE e.id = ANY($1) AND e.status = 'enabled' AND a.plan IN ('agency', 'business')",
    )
    .bind(endpoints.iter().map(|endpoint| endpoint.uuid()).collect::<Vec<_>>())
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let target = Target {
                url: row.try_get("url")?,
                epoch: row.try_get("epoch")?,
                secret_key_id: row.try_get("secret_key_id")?,
                secret_sealed: row.try_get("secret_sealed")?,
            };
            Ok((EndpointId::from_uuid(row.try_get("id")?), target))
        })
        .collect()
}

/// Gives leases back, so that another dispatcher need not wait until they run out.
pub(crate) async fn release(pool: &PgPool, leases: impl Iterator<Item = (Uuid, Uuid)>) -> sqlx::Result<()> {
    let (ids, tokens): (Vec<Uuid>, Vec<Uuid>) = leases.unzip();
    sqlx::query(
        "UPDATE webhook_deliveries d SET lease_until = NULL, lease_token = NULL
         FROM unnest($1::uuid[], $2::uuid[]) AS held (delivery_id, lease_token)
         WHERE d.delivery_id = held.delivery_id AND d.lease_token = held.lease_token",
    )
    .bind(ids)
    .bind(tokens)
    .execute(pool)
    .await
    .map(drop)
}
