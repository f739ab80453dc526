//! From the topic of deliveries into the queue.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use schemas::message::Delivery;
use sqlx::{PgPool, Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::queue::Lease;

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

/// A delivery that comes in.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    /// What is on the topic.
    pub(crate) delivery: Delivery,
    /// Whether its event may come again later, or came before.
    pub(crate) may_repeat: bool,
    /// When its record was written.
    pub(crate) fanned_out_at: DateTime<Utc>,
    /// Whether it is stored under a lease, to be sent at once.
    pub(crate) is_leased: bool,
}

/// A delivery that was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The delivery.
    pub(crate) delivery_id: Uuid,
    /// The endpoint's epoch.
    pub(crate) epoch: i64,
}

/// Stores deliveries together with the positions that they reach, or neither.
///
/// Left out are: a delivery that is there already, or ended and is remembered; and one whose endpoint is gone,
/// disabled, or enabled only after the delivery was fanned out.
pub(crate) async fn insert(
    pool: &PgPool,
    incoming: &[Incoming],
    moves: &[Move],
    lease: Lease,
) -> sqlx::Result<Result<Vec<Stored>, Fenced>> {
    let mut transaction = pool.begin().await?;
    // First, so that a former owner of a partition waits here, and not with rows in its hands.
    if !move_offsets(&mut transaction, moves).await? {
        transaction.rollback().await?;
        return Ok(Err(Fenced));
    }
    let column = |id: fn(&Delivery) -> Uuid| incoming.iter().map(|one| id(&one.delivery)).collect::<Vec<_>>();
    let rows = sqlx::query(
        "INSERT INTO webhook_deliveries (delivery_id, endpoint_id, workspace_id, epoch, event, body, created_at,
                                         is_remembered, due_at, lease_until, lease_token, leased_by)
         SELECT i.delivery_id, i.endpoint_id, i.workspace_id, e.epoch, i.event, i.body, i.created_at, i.may_repeat,
                now(), CASE WHEN i.is_leased THEN now() + make_interval(secs => $10) END,
                CASE WHEN i.is_leased THEN $11 END, CASE WHEN i.is_leased THEN $12 END
         FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::bytea[], $6::timestamptz[], $7::boolean[],
                     $8::timestamptz[], $9::boolean[])
              AS i (delivery_id, endpoint_id, workspace_id, event, body, created_at, may_repeat, fanned_out_at,
                    is_leased)
         JOIN webhook_endpoints e ON e.id = i.endpoint_id AND e.status = 'enabled'
              -- Two clocks: the one that stamps records may be a little behind.
              AND i.fanned_out_at >= e.enabled_from - interval '5 seconds'
         -- Asked for each: of two copies the marked one may come first.
         WHERE NOT EXISTS (SELECT FROM webhook_finished f WHERE f.delivery_id = i.delivery_id)
         ON CONFLICT DO NOTHING
         RETURNING delivery_id, epoch",
    )
    .bind(column(|delivery| delivery.delivery_id))
    .bind(column(|delivery| delivery.endpoint_id.uuid()))
    .bind(column(|delivery| delivery.workspace_id.uuid()))
    .bind(incoming.iter().map(|one| one.delivery.event.as_str()).collect::<Vec<_>>())
    .bind(incoming.iter().map(|one| one.delivery.body.as_bytes()).collect::<Vec<_>>())
    .bind(incoming.iter().map(|one| one.delivery.created_at).collect::<Vec<_>>())
    .bind(incoming.iter().map(|one| one.may_repeat).collect::<Vec<_>>())
    .bind(incoming.iter().map(|one| one.fanned_out_at).collect::<Vec<_>>())
    .bind(incoming.iter().map(|one| one.is_leased).collect::<Vec<_>>())
    .bind(lease.lasts.as_secs_f64())
    .bind(lease.token)
    .bind(lease.by)
    .fetch_all(&mut *transaction)
    .await?;
    let stored = rows
        .iter()
        .map(|row| Ok(Stored { delivery_id: row.try_get("delivery_id")?, epoch: row.try_get("epoch")? }))
        .collect::<sqlx::Result<_>>()?;
    transaction.commit().await?;
    Ok(Ok(stored))
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
