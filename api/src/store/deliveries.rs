//! Deliveries, as far as callers see them: the failure log, tests and redelivery.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool, QueryBuilder};
use uuid::Uuid;

/// A row of table `webhook_failures`, and when its delivery arrived later.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct FailureRow {
    pub(crate) id: Uuid,
    pub(crate) delivery_id: Uuid,
    pub(crate) event: String,
    pub(crate) attempt: i16,
    pub(crate) status_code: Option<i16>,
    pub(crate) error_class: Option<String>,
    pub(crate) response_body: String,
    pub(crate) duration_ms: i32,
    pub(crate) attempted_at: DateTime<Utc>,
    pub(crate) next_attempt_at: Option<DateTime<Utc>>,
    pub(crate) delivered_at: Option<DateTime<Utc>>,
}

/// The state of a delivery.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct DeliveryRow {
    pub(crate) delivery_id: Uuid,
    pub(crate) attempts: i16,
    pub(crate) status_code: Option<i16>,
    pub(crate) error_class: Option<String>,
    /// `None` unless it is pending.
    pub(crate) next_attempt_at: Option<DateTime<Utc>>,
    pub(crate) delivered_at: Option<DateTime<Utc>>,
    pub(crate) failed_at: Option<DateTime<Utc>>,
}

/// The failed deliveries to send again.
#[derive(Debug)]
pub(crate) enum Chosen {
    /// By id.
    Ids(Vec<Uuid>),
    /// By the time of the last failure, from the first instant until before the second, or until now.
    FailedIn(DateTime<Utc>, Option<DateTime<Utc>>),
}

/// Reads a page of an endpoint's failed attempts of the last 7 days, newest first.
pub(crate) async fn page(
    pool: &PgPool,
    endpoint: Uuid,
    after: Option<(DateTime<Utc>, Uuid)>,
    limit: usize,
) -> sqlx::Result<Vec<FailureRow>> {
    let mut query = QueryBuilder::new(
        "SELECT f.*, d.delivered_at FROM webhook_failures f
         LEFT JOIN webhook_failed_deliveries d ON d.delivery_id = f.delivery_id
         WHERE f.attempted_at > now() - interval '7 days' AND f.endpoint_id = ",
    );
    query.push_bind(endpoint);
    if let Some((attempted_at, id)) = after {
        query
            .push(" AND (f.attempted_at, f.id) < (")
            .push_bind(attempted_at)
            .push(", ")
            .push_bind(id)
            .push(")");
    }
    query.push(" ORDER BY f.attempted_at DESC, f.id DESC LIMIT ").push_bind(limit as i64);
    query.build_query_as().fetch_all(pool).await
}

/// Reads the state of a delivery to an endpoint.
pub(crate) async fn delivery(
    pool: &PgPool,
    endpoint: Uuid,
    delivery: Uuid,
) -> sqlx::Result<Option<DeliveryRow>> {
    sqlx::query_as(
        "SELECT $1 AS delivery_id, coalesce(d.attempts, r.attempts, f.attempts) AS attempts,
                f.status_code, f.error_class, f.failed_at,
                d.due_at AS next_attempt_at, coalesce(r.finished_at, f.delivered_at) AS delivered_at
         FROM (SELECT) AS one
         LEFT JOIN webhook_deliveries d ON d.delivery_id = $1 AND d.endpoint_id = $2
         LEFT JOIN webhook_failed_deliveries f ON f.delivery_id = $1 AND f.endpoint_id = $2
              AND f.failed_at > now() - interval '7 days'
         LEFT JOIN webhook_finished r ON r.delivery_id = $1 AND r.delivered_to = $2
              AND r.finished_at > now() - interval '24 hours'
         WHERE num_nonnulls(d.delivery_id, f.delivery_id, r.delivery_id) > 0",
    )
    .bind(delivery)
    .bind(endpoint)
    .fetch_optional(pool)
    .await
}

/// Queues a test event, whose end is remembered; false when the endpoint is not enabled.
pub(crate) async fn queue_test(
    transaction: &mut PgConnection,
    endpoint: Uuid,
    delivery: Uuid,
    kind: &str,
    body: &[u8],
    created_at: DateTime<Utc>,
) -> sqlx::Result<bool> {
    let queued = sqlx::query(
        "INSERT INTO webhook_deliveries (delivery_id, endpoint_id, workspace_id, epoch, event, body, created_at,
                                         is_remembered, due_at)
         SELECT $1, id, workspace_id, epoch, $3, $4, $5, true, now() FROM webhook_endpoints
         WHERE id = $2 AND status = 'enabled'",
    )
    .bind(delivery)
    .bind(endpoint)
    .bind(kind)
    .bind(body)
    .bind(created_at)
    .execute(transaction)
    .await?;
    Ok(queued.rows_affected() == 1)
}

/// Queues failed deliveries of an endpoint again. Returns how many.
pub(crate) async fn redeliver(
    transaction: &mut PgConnection,
    endpoint: Uuid,
    chosen: &Chosen,
) -> sqlx::Result<i64> {
    let (ids, from, before) = match chosen {
        Chosen::Ids(ids) => (Some(ids), None, None),
        Chosen::FailedIn(from, before) => (None, Some(*from), *before),
    };
    sqlx::query_scalar("SELECT webhook_redeliver($1, $2, $3, coalesce($4, 'infinity'))")
        .bind(endpoint)
        .bind(ids)
        .bind(from)
        .bind(before)
        .fetch_one(transaction)
        .await
}
