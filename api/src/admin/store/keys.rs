//! API keys, and the tokens of external redirect edges.

use chrono::{DateTime, Utc};
use schemas::id::{EdgeTokenId, KeyId, WorkspaceId};
use schemas::message::{EdgeToken, Message as _, Version};
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use super::{record, workspace_exists};
use crate::keys::Plain;
use crate::outbox::{self, Outgoing};

/// Stores a key's digest; `None` when there is no such workspace.
pub(in crate::admin) async fn create_key(
    pool: &PgPool,
    workspace: WorkspaceId,
    key: &Plain,
    name: &str,
    scope: &str,
    expires_at: Option<DateTime<Utc>>,
) -> sqlx::Result<Option<KeyId>> {
    let id = KeyId::from_uuid(Uuid::now_v7());
    let mut transaction = pool.begin().await?;
    if !workspace_exists(&mut transaction, workspace.uuid()).await? {
        return Ok(None);
    }
    sqlx::query(
        "INSERT INTO api_keys (id, workspace_id, key_sha256, display_prefix, name, scope, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(id.uuid())
    .bind(workspace.uuid())
    .bind(&key.digest()[..])
    .bind(key.display_prefix())
    .bind(name)
    .bind(scope)
    .bind(expires_at)
    .execute(&mut *transaction)
    .await?;
    let details =
        json!({ "workspace_id": workspace, "name": name, "scope": scope, "expires_at": expires_at });
    record(&mut transaction, "create-key", &id.to_string(), details).await?;
    transaction.commit().await?;
    Ok(Some(id))
}

/// Revokes a key; false when there is none. A key that was revoked before keeps its time.
pub(in crate::admin) async fn revoke_key(pool: &PgPool, key: KeyId) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    let found = sqlx::query("UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1")
        .bind(key.uuid())
        .execute(&mut *transaction)
        .await?
        .rows_affected();
    if found == 0 {
        return Ok(false);
    }
    record(&mut transaction, "revoke-key", &key.to_string(), json!({})).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Stores a token's digest and tells the edges; `Err` is the workspace when there is no such one.
pub(in crate::admin) async fn create_edge_token(
    pool: &PgPool,
    workspace: Option<WorkspaceId>,
    token: &Plain,
) -> sqlx::Result<Result<EdgeTokenId, WorkspaceId>> {
    let id = EdgeTokenId::from_uuid(Uuid::now_v7());
    let mut transaction = pool.begin().await?;
    if let Some(workspace) = workspace
        && !workspace_exists(&mut transaction, workspace.uuid()).await?
    {
        return Ok(Err(workspace));
    }
    let row: EdgeTokenRow = sqlx::query_as(
        "INSERT INTO edge_tokens (id, workspace_id, token_sha256) VALUES ($1, $2, $3)
         RETURNING id, workspace_id, token_sha256, revoked_at",
    )
    .bind(id.uuid())
    .bind(workspace.map(WorkspaceId::uuid))
    .bind(&token.digest()[..])
    .fetch_one(&mut *transaction)
    .await?;
    outbox::enqueue_all(&mut transaction, [row.message()]).await?;
    record(&mut transaction, "create-edge-token", &id.to_string(), json!({ "workspace_id": workspace }))
        .await?;
    transaction.commit().await?;
    Ok(Ok(id))
}

/// Revokes a token and tells the edges; false when there is none.
pub(in crate::admin) async fn revoke_edge_token(pool: &PgPool, id: EdgeTokenId) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    let row: Option<EdgeTokenRow> = sqlx::query_as(
        "UPDATE edge_tokens SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1
         RETURNING id, workspace_id, token_sha256, revoked_at",
    )
    .bind(id.uuid())
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(row) = row else { return Ok(false) };
    outbox::enqueue_all(&mut transaction, [row.message()]).await?;
    record(&mut transaction, "revoke-edge-token", &id.to_string(), json!({})).await?;
    transaction.commit().await?;
    Ok(true)
}

/// What edges need of a row of table `edge_tokens`.
#[derive(sqlx::FromRow)]
pub(super) struct EdgeTokenRow {
    id: Uuid,
    workspace_id: Option<Uuid>,
    token_sha256: Vec<u8>,
    revoked_at: Option<DateTime<Utc>>,
}

impl EdgeTokenRow {
    /// What edges are told of the token.
    pub(super) fn message(&self) -> Outgoing {
        let token = EdgeToken {
            version: Version,
            edge_token_id: EdgeTokenId::from_uuid(self.id),
            token_sha256: self.token_sha256.iter().map(|byte| format!("{byte:02x}")).collect(),
            workspace_id: self.workspace_id.map(WorkspaceId::from_uuid),
            revoked_at: self.revoked_at,
        };
        Outgoing { topic: schemas::topic::LINKS, key: token.key(), value: token.encode() }
    }
}
