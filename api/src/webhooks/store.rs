//! The SQL of webhook endpoints. Whatever changes an endpoint raises `endpoints_version` in the same transaction:
//! that is how the dispatcher learns of it before the next event.

use chrono::{DateTime, Utc};
use service::sealed::Sealed;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// A row of table `webhook_endpoints`, without the secret.
#[derive(Debug, sqlx::FromRow)]
pub(super) struct EndpointRow {
    pub(super) id: Uuid,
    pub(super) url: String,
    pub(super) description: String,
    pub(super) events: Vec<String>,
    pub(super) click_classes: Vec<String>,
    pub(super) status: String,
    pub(super) disabled_reason: Option<String>,
    pub(super) consecutive_exhausted: i32,
    pub(super) created_at: DateTime<Utc>,
    pub(super) updated_at: DateTime<Utc>,
}

/// Inserts an endpoint, enabled from its creation on.
pub(super) async fn insert(
    pool: &PgPool,
    workspace: Uuid,
    row: &EndpointRow,
    secret: &Sealed,
) -> sqlx::Result<()> {
    let mut transaction = pool.begin().await?;
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
    raise_version(&mut transaction).await?;
    transaction.commit().await
}

/// Reads an endpoint of a workspace.
pub(super) async fn find(pool: &PgPool, workspace: Uuid, id: Uuid) -> sqlx::Result<Option<EndpointRow>> {
    sqlx::query_as("SELECT * FROM webhook_endpoints WHERE id = $1 AND workspace_id = $2")
        .bind(id)
        .bind(workspace)
        .fetch_optional(pool)
        .await
}

/// Reads the newest endpoints of a workspace.
pub(super) async fn newest(pool: &PgPool, workspace: Uuid, limit: i64) -> sqlx::Result<Vec<EndpointRow>> {
    sqlx::query_as(
        "SELECT * FROM webhook_endpoints WHERE workspace_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2",
    )
    .bind(workspace)
    .bind(limit)
    .fetch_all(pool)
    .await
}

/// Removes an endpoint with its deliveries and failures; false when there is none.
pub(super) async fn delete(pool: &PgPool, workspace: Uuid, id: Uuid) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    let deleted = sqlx::query("DELETE FROM webhook_endpoints WHERE id = $1 AND workspace_id = $2")
        .bind(id)
        .bind(workspace)
        .execute(&mut *transaction)
        .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query("DELETE FROM webhook_deliveries WHERE endpoint_id = $1")
        .bind(id)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("DELETE FROM webhook_failures WHERE endpoint_id = $1")
        .bind(id)
        .execute(&mut *transaction)
        .await?;
    raise_version(&mut transaction).await?;
    transaction.commit().await?;
    Ok(true)
}

async fn raise_version(transaction: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("UPDATE endpoints_version SET version = version + 1").execute(transaction).await?;
    Ok(())
}
