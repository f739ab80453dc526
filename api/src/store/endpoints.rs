//! Webhook endpoints. Every change raises `endpoints_version` in the same transaction, so that the dispatcher reloads
//! endpoints before the next event. The version comes last, because all transactions share its row.

use chrono::{DateTime, Utc};
use schemas::id::EndpointId;
use service::sealed::Sealed;
use sqlx::{PgConnection, PgExecutor, PgPool};
use uuid::Uuid;

use crate::store::workspaces;

/// A row of table `webhook_endpoints`, without the secret, and of `webhook_health`.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct EndpointRow {
    pub(crate) id: Uuid,
    pub(crate) url: String,
    pub(crate) description: String,
    pub(crate) events: Vec<String>,
    pub(crate) click_classes: Vec<String>,
    pub(crate) status: String,
    pub(crate) disabled_reason: Option<String>,
    pub(crate) consecutive_exhausted: i32,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
    pub(crate) last_success_at: Option<DateTime<Utc>>,
    pub(crate) last_failure_at: Option<DateTime<Utc>>,
    /// Whether its queue takes no more deliveries.
    pub(crate) is_full: bool,
    pub(crate) dropped: i64,
    pub(crate) first_dropped_at: Option<DateTime<Utc>>,
    pub(crate) last_dropped_at: Option<DateTime<Utc>>,
}

/// Selects [`EndpointRow`]s of workspace `$1`; further conditions can follow.
macro_rules! select {
    () => {
        "SELECT e.*, h.last_success_at, h.last_failure_at, coalesce(h.is_full, false) AS is_full,
                coalesce(h.dropped, 0) AS dropped, h.first_dropped_at, h.last_dropped_at
         FROM webhook_endpoints e
         LEFT JOIN webhook_health h ON h.endpoint_id = e.id WHERE e.workspace_id = $1"
    };
}

/// Counts a workspace's endpoints while no other transaction adds one.
pub(crate) async fn lock_and_count(transaction: &mut PgConnection, workspace: Uuid) -> sqlx::Result<i64> {
    workspaces::lock(transaction, workspace).await?;
    sqlx::query_scalar("SELECT count(*) FROM webhook_endpoints WHERE workspace_id = $1")
        .bind(workspace)
        .fetch_one(transaction)
        .await
}

/// Inserts an enabled endpoint.
pub(crate) async fn insert(
    transaction: &mut PgConnection,
    workspace: Uuid,
    row: &EndpointRow,
    secret: &Sealed,
) -> sqlx::Result<()> {
    sqlx::query(
        "INSERT INTO webhook_endpoints (id, workspace_id, url, description, events, click_classes, enabled_from,
                                        secret_key_id, secret_sealed, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $7, $7)",
    )
    .bind(row.id)
    .bind(workspace)
    .bind(&row.url)
    .bind(&row.description)
    .bind(&row.events)
    .bind(&row.click_classes)
    .bind(row.created_at)
    .bind(i16::from(secret.key_id))
    .bind(&secret.bytes)
    .execute(&mut *transaction)
    .await?;
    raise_version(transaction).await
}

/// Reads an endpoint of a workspace.
pub(crate) async fn find(
    executor: impl PgExecutor<'_>,
    workspace: Uuid,
    id: Uuid,
) -> sqlx::Result<Option<EndpointRow>> {
    sqlx::query_as(concat!(select!(), " AND e.id = $2"))
        .bind(workspace)
        .bind(id)
        .fetch_optional(executor)
        .await
}

/// Reads an endpoint and locks it until the transaction ends.
pub(crate) async fn find_for_update(
    transaction: &mut PgConnection,
    workspace: Uuid,
    id: Uuid,
) -> sqlx::Result<Option<EndpointRow>> {
    sqlx::query_as(concat!(select!(), " AND e.id = $2 FOR NO KEY UPDATE OF e"))
        .bind(workspace)
        .bind(id)
        .fetch_optional(transaction)
        .await
}

/// Reads a page of a workspace's endpoints, newest first, after the last one of the page before.
pub(crate) async fn page(
    pool: &PgPool,
    workspace: Uuid,
    before: Option<Uuid>,
    limit: i64,
) -> sqlx::Result<Vec<EndpointRow>> {
    sqlx::query_as(concat!(select!(), " AND ($2::uuid IS NULL OR e.id < $2) ORDER BY e.id DESC LIMIT $3"))
        .bind(workspace)
        .bind(before)
        .bind(limit)
        .fetch_all(pool)
        .await
}

/// Writes the fields that callers can change.
pub(crate) async fn update(transaction: &mut PgConnection, row: &EndpointRow) -> sqlx::Result<()> {
    sqlx::query(
        "UPDATE webhook_endpoints
         SET url = $2, description = $3, events = $4, click_classes = $5, updated_at = $6 WHERE id = $1",
    )
    .bind(row.id)
    .bind(&row.url)
    .bind(&row.description)
    .bind(&row.events)
    .bind(&row.click_classes)
    .bind(row.updated_at)
    .execute(&mut *transaction)
    .await?;
    raise_version(transaction).await
}

/// Replaces the secret; the former one is kept for 24 hours. `None` when there is no endpoint.
pub(crate) async fn rotate(
    transaction: &mut PgConnection,
    workspace: Uuid,
    id: Uuid,
    secret: &Sealed,
) -> sqlx::Result<Option<EndpointRow>> {
    let rotated = sqlx::query(
        "UPDATE webhook_endpoints
         SET previous_secret_key_id = secret_key_id, previous_secret_sealed = secret_sealed,
             previous_secret_until = now() + interval '24 hours',
             secret_key_id = $3, secret_sealed = $4, updated_at = greatest(created_at, \
             date_trunc('milliseconds', now()))
         WHERE id = $1 AND workspace_id = $2",
    )
    .bind(id)
    .bind(workspace)
    .bind(i16::from(secret.key_id))
    .bind(&secret.bytes)
    .execute(&mut *transaction)
    .await?;
    if rotated.rows_affected() == 0 {
        return Ok(None);
    }
    raise_version(&mut *transaction).await?;
    find(transaction, workspace, id).await
}

/// Enables a disabled endpoint for new events; false when it is enabled already, `None` when there is no endpoint.
///
/// Outcomes of earlier deliveries no longer count: they belong to the former epoch.
pub(crate) async fn enable(transaction: &mut PgConnection, id: EndpointId) -> sqlx::Result<Option<bool>> {
    let status: Option<String> =
        sqlx::query_scalar("SELECT status FROM webhook_endpoints WHERE id = $1 FOR NO KEY UPDATE")
            .bind(id.uuid())
            .fetch_optional(&mut *transaction)
            .await?;
    match status.as_deref() {
        None => return Ok(None),
        Some("enabled") => return Ok(Some(false)),
        Some(_) => {}
    }
    sqlx::query(
        "UPDATE webhook_endpoints
         SET status = 'enabled', disabled_reason = NULL, consecutive_exhausted = 0, epoch = epoch + 1,
             enabled_from = now(), updated_at = greatest(created_at, date_trunc('milliseconds', now()))
         WHERE id = $1",
    )
    .bind(id.uuid())
    .execute(&mut *transaction)
    .await?;
    raise_version(transaction).await?;
    Ok(Some(true))
}

/// Deletes an endpoint and returns its URL; `None` when there is none.
///
/// The dispatcher removes its deliveries and its failure log in small statements: there may be millions.
pub(crate) async fn delete(
    transaction: &mut PgConnection,
    workspace: Uuid,
    id: Uuid,
) -> sqlx::Result<Option<String>> {
    let url =
        sqlx::query_scalar("DELETE FROM webhook_endpoints WHERE id = $1 AND workspace_id = $2 RETURNING url")
            .bind(id)
            .bind(workspace)
            .fetch_optional(&mut *transaction)
            .await?;
    if url.is_some() {
        raise_version(transaction).await?;
    }
    Ok(url)
}

/// Finds the next endpoint after an id with a secret that another key than `key` sealed, and locks it. Returns its id,
/// its secret and, if there is one, the former secret: key and sealed bytes of each.
pub(crate) async fn next_sealed_with_another_key(
    transaction: &mut PgConnection,
    after: Uuid,
    key: i16,
) -> sqlx::Result<Option<(Uuid, Vec<(i16, Vec<u8>)>)>> {
    type Row = (Uuid, i16, Vec<u8>, Option<i16>, Option<Vec<u8>>);
    let row: Option<Row> = sqlx::query_as(
        "SELECT id, secret_key_id, secret_sealed, previous_secret_key_id, previous_secret_sealed
         FROM webhook_endpoints WHERE id > $1 AND (secret_key_id <> $2 OR previous_secret_key_id <> $2)
         ORDER BY id LIMIT 1 FOR NO KEY UPDATE",
    )
    .bind(after)
    .bind(key)
    .fetch_optional(transaction)
    .await?;
    Ok(row.map(|(id, key, sealed, previous_key, previous)| {
        (id, std::iter::once((key, sealed)).chain(previous_key.zip(previous)).collect())
    }))
}

/// Stores the same secrets under another seal: the present one and, if there is one, the former.
pub(crate) async fn set_secrets(
    transaction: &mut PgConnection,
    id: Uuid,
    secrets: &[Sealed],
) -> sqlx::Result<()> {
    let (secret, previous) = (secrets.first(), secrets.get(1));
    sqlx::query(
        "UPDATE webhook_endpoints
         SET secret_key_id = $2, secret_sealed = $3, previous_secret_key_id = $4, previous_secret_sealed = $5
         WHERE id = $1",
    )
    .bind(id)
    .bind(secret.map(|secret| i16::from(secret.key_id)))
    .bind(secret.map(|secret| &secret.bytes))
    .bind(previous.map(|secret| i16::from(secret.key_id)))
    .bind(previous.map(|secret| &secret.bytes))
    .execute(transaction)
    .await?;
    Ok(())
}

/// Makes the dispatcher reload endpoints before it matches another event.
pub(crate) async fn raise_version(transaction: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("UPDATE endpoints_version SET version = version + 1").execute(transaction).await?;
    Ok(())
}
