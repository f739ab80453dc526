//! Inserts deliveries, together with the positions of the partitions that their events come from.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use schemas::id::{AccountId, EndpointId, WorkspaceId};
use sqlx::{PgExecutor, PgPool, Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::queue::Lease;

/// A partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Partition {
    /// The topic's full name.
    pub(crate) topic: Arc<str>,
    /// The partition's number.
    pub(crate) number: i32,
}

impl Partition {
    /// Creates the name of a partition.
    pub(crate) fn new(topic: &str, number: i32) -> Self {
        Self { topic: topic.into(), number }
    }
}

/// The position up to which a partition's events are in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// Kafka's id of the topic; offsets of a recreated topic are not comparable.
    pub(crate) topic_id: Uuid,
    /// The next offset to read.
    pub(crate) next: i64,
}

/// A change of a partition's position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    /// The partition.
    pub(crate) partition: Partition,
    /// The expected current position.
    pub(crate) from: Position,
    /// The new position.
    pub(crate) to: Position,
}

/// Another dispatcher has moved a partition, so this one no longer owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fenced;

/// A delivery to insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewDelivery {
    /// The delivery's id, which never changes.
    pub(crate) delivery_id: Uuid,
    /// The endpoint to send to.
    pub(crate) endpoint_id: EndpointId,
    /// The event's workspace.
    pub(crate) workspace_id: WorkspaceId,
    /// The workspace's account.
    pub(crate) account_id: AccountId,
    /// The event's kind.
    pub(crate) event: &'static str,
    /// The exact bytes to sign and send. Stored once, so that every attempt sends the same.
    pub(crate) body: String,
    /// The event's own time.
    pub(crate) created_at: DateTime<Utc>,
    /// The time of the event's record in Kafka.
    pub(crate) accepted_at: DateTime<Utc>,
    /// Whether its end is recorded, because its event is a possible repeat.
    pub(crate) is_remembered: bool,
    /// Whether it is inserted under a lease, to be sent immediately.
    pub(crate) is_leased: bool,
}

/// A delivery that was inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// The delivery.
    pub(crate) delivery_id: Uuid,
    /// The endpoint's epoch.
    pub(crate) epoch: i64,
}

/// Returns the positions of partitions, without those that have no row yet.
pub(crate) async fn positions(
    pool: &PgPool,
    partitions: &[Partition],
) -> sqlx::Result<HashMap<Partition, Position>> {
    let rows = sqlx::query(
        "SELECT topic, partition_id, topic_id, next_offset FROM webhook_offsets
         WHERE (topic, partition_id) IN (SELECT * FROM unnest($1::text[], $2::integer[]))",
    )
    .bind(partitions.iter().map(|one| &*one.topic).collect::<Vec<_>>())
    .bind(partitions.iter().map(|one| one.number).collect::<Vec<_>>())
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let partition = Partition::new(row.try_get("topic")?, row.try_get("partition_id")?);
            Ok((
                partition,
                Position { topic_id: row.try_get("topic_id")?, next: row.try_get("next_offset")? },
            ))
        })
        .collect()
}

/// Inserts the positions of partitions that have no row yet.
pub(crate) async fn add_positions(
    pool: &PgPool,
    positions: &[(Partition, Position)],
) -> sqlx::Result<Result<(), Fenced>> {
    let added = sqlx::query(
        "INSERT INTO webhook_offsets (topic, partition_id, topic_id, next_offset)
         SELECT * FROM unnest($1::text[], $2::integer[], $3::uuid[], $4::bigint[]) ON CONFLICT DO NOTHING",
    )
    .bind(positions.iter().map(|(partition, _)| &*partition.topic).collect::<Vec<_>>())
    .bind(positions.iter().map(|(partition, _)| partition.number).collect::<Vec<_>>())
    .bind(positions.iter().map(|(_, position)| position.topic_id).collect::<Vec<_>>())
    .bind(positions.iter().map(|(_, position)| position.next).collect::<Vec<_>>())
    .execute(pool)
    .await?;
    Ok(all(added.rows_affected(), positions.len()))
}

/// Moves positions, each only if it still has the expected value.
pub(crate) async fn move_positions(
    executor: impl PgExecutor<'_>,
    moves: &[Move],
) -> sqlx::Result<Result<(), Fenced>> {
    // Waits for another dispatcher that is moving the same row, and then sees its new value.
    let moved = sqlx::query(
        "UPDATE webhook_offsets o SET topic_id = m.to_id, next_offset = m.to_offset
         FROM unnest($1::text[], $2::integer[], $3::uuid[], $4::bigint[], $5::uuid[], $6::bigint[])
              AS m (topic, partition_id, from_id, from_offset, to_id, to_offset)
         WHERE o.topic = m.topic AND o.partition_id = m.partition_id
           AND o.topic_id = m.from_id AND o.next_offset = m.from_offset",
    )
    .bind(moves.iter().map(|one| &*one.partition.topic).collect::<Vec<_>>())
    .bind(moves.iter().map(|one| one.partition.number).collect::<Vec<_>>())
    .bind(moves.iter().map(|one| one.from.topic_id).collect::<Vec<_>>())
    .bind(moves.iter().map(|one| one.from.next).collect::<Vec<_>>())
    .bind(moves.iter().map(|one| one.to.topic_id).collect::<Vec<_>>())
    .bind(moves.iter().map(|one| one.to.next).collect::<Vec<_>>())
    .execute(executor)
    .await?;
    Ok(all(moved.rows_affected(), moves.len()))
}

fn all(done: u64, wanted: usize) -> Result<(), Fenced> {
    if done == wanted as u64 { Ok(()) } else { Err(Fenced) }
}

/// Inserts deliveries, counts those that were dropped by endpoint, and moves the positions, in one transaction.
///
/// Skips a delivery that is stored already or whose end is recorded, and one whose endpoint is deleted, disabled, or
/// was enabled after the event was accepted.
pub(crate) async fn insert(
    pool: &PgPool,
    deliveries: &[NewDelivery],
    dropped: &HashMap<EndpointId, i64>,
    moves: &[Move],
    lease: Option<Lease>,
) -> sqlx::Result<Result<Vec<Inserted>, Fenced>> {
    if deliveries.is_empty() && dropped.is_empty() {
        // Without deliveries, positions need not move together.
        return Ok(move_positions(pool, moves).await?.map(|()| Vec::new()));
    }
    let mut transaction = pool.begin().await?;
    // First, so that a former owner of a partition waits here, before it has inserted rows.
    if move_positions(&mut *transaction, moves).await?.is_err() {
        transaction.rollback().await?;
        return Ok(Err(Fenced));
    }
    let ids = |id: fn(&NewDelivery) -> Uuid| deliveries.iter().map(id).collect::<Vec<_>>();
    let rows = sqlx::query(
        "INSERT INTO webhook_deliveries (delivery_id, endpoint_id, workspace_id, epoch, event, body, created_at,
                                         is_remembered, due_at, lease_until, lease_token, leased_by)
         SELECT n.delivery_id, n.endpoint_id, n.workspace_id, e.epoch, n.event, n.body, n.created_at,
                n.is_remembered, now(), CASE WHEN n.is_leased THEN now() + make_interval(secs => $10) END,
                CASE WHEN n.is_leased THEN $11 END, CASE WHEN n.is_leased THEN $12 END
         FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::bytea[], $6::timestamptz[],
                     $7::timestamptz[], $8::boolean[], $9::boolean[])
              AS n (delivery_id, endpoint_id, workspace_id, event, body, created_at, accepted_at, is_remembered,
                    is_leased)
         JOIN webhook_endpoints e ON e.id = n.endpoint_id AND e.status = 'enabled'
              -- Two clocks: the one that stamps records may be a little behind.
              AND n.accepted_at >= e.enabled_from - interval '5 seconds'
         -- Asked for each: of two copies the marked one may come first.
         WHERE NOT EXISTS (SELECT FROM webhook_finished f WHERE f.delivery_id = n.delivery_id)
         ON CONFLICT DO NOTHING
         RETURNING delivery_id, epoch",
    )
    .bind(ids(|one| one.delivery_id))
    .bind(ids(|one| one.endpoint_id.uuid()))
    .bind(ids(|one| one.workspace_id.uuid()))
    .bind(deliveries.iter().map(|one| one.event).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|one| one.body.as_bytes()).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|one| one.created_at).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|one| one.accepted_at).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|one| one.is_remembered).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|one| one.is_leased).collect::<Vec<_>>())
    .bind(lease.map(|lease| lease.lasts.as_secs_f64()))
    .bind(lease.map(|lease| lease.token))
    .bind(lease.map(|lease| lease.by))
    .fetch_all(&mut *transaction)
    .await?;
    let inserted = rows
        .iter()
        .map(|row| Ok(Inserted { delivery_id: row.try_get("delivery_id")?, epoch: row.try_get("epoch")? }))
        .collect::<sqlx::Result<_>>()?;
    count_dropped(&mut transaction, dropped).await?;
    transaction.commit().await?;
    Ok(Ok(inserted))
}

/// Adds dropped deliveries to the counts of their endpoints, unless these are deleted.
async fn count_dropped(
    transaction: &mut Transaction<'_, Postgres>,
    dropped: &HashMap<EndpointId, i64>,
) -> sqlx::Result<()> {
    if dropped.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO webhook_health AS h (endpoint_id, dropped, first_dropped_at, last_dropped_at)
         SELECT e.id, n.dropped, now(), now() FROM unnest($1::uuid[], $2::bigint[]) AS n (endpoint_id, dropped)
         JOIN webhook_endpoints e ON e.id = n.endpoint_id
         ORDER BY e.id
         ON CONFLICT (endpoint_id) DO UPDATE
         SET dropped = h.dropped + excluded.dropped, last_dropped_at = excluded.last_dropped_at,
             first_dropped_at = coalesce(h.first_dropped_at, excluded.first_dropped_at)",
    )
    .bind(dropped.keys().map(|endpoint| endpoint.uuid()).collect::<Vec<Uuid>>())
    .bind(dropped.values().copied().collect::<Vec<_>>())
    .execute(&mut **transaction)
    .await
    .map(drop)
}
