//! Tokens of external redirect edges, by their digests. Every change queues a message to the edges in its transaction.

use chrono::{DateTime, Utc};
use schemas::id::{EdgeTokenId, WorkspaceId};
use schemas::message::{EdgeToken, Message as _, Version};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::store::outbox;
use crate::store::outbox::Outgoing;

/// Inserts a token, for one workspace or for all.
pub(crate) async fn insert(
    transaction: &mut PgConnection,
    workspace: Option<WorkspaceId>,
    digest: &[u8; 32],
) -> sqlx::Result<EdgeTokenId> {
    let row: EdgeTokenRow = sqlx::query_as(
        "INSERT INTO edge_tokens (id, workspace_id, token_sha256) VALUES ($1, $2, $3)
         RETURNING id, workspace_id, token_sha256, revoked_at",
    )
    .bind(Uuid::now_v7())
    .bind(workspace.map(WorkspaceId::uuid))
    .bind(&digest[..])
    .fetch_one(&mut *transaction)
    .await?;
    outbox::enqueue_all(transaction, [row.message()]).await?;
    Ok(EdgeTokenId::from_uuid(row.id))
}

/// Revokes a token; false when there is none.
pub(crate) async fn revoke(transaction: &mut PgConnection, id: EdgeTokenId) -> sqlx::Result<bool> {
    let row: Option<EdgeTokenRow> = sqlx::query_as(
        "UPDATE edge_tokens SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1
         RETURNING id, workspace_id, token_sha256, revoked_at",
    )
    .bind(id.uuid())
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(row) = row else { return Ok(false) };
    outbox::enqueue_all(transaction, [row.message()]).await?;
    Ok(true)
}

/// Revokes every token of an account's workspaces.
pub(crate) async fn revoke_all(transaction: &mut PgConnection, account: Uuid) -> sqlx::Result<()> {
    let rows: Vec<EdgeTokenRow> = sqlx::query_as(
        "UPDATE edge_tokens SET revoked_at = coalesce(revoked_at, now())
         WHERE workspace_id IN (SELECT id FROM workspaces WHERE account_id = $1)
         RETURNING id, workspace_id, token_sha256, revoked_at",
    )
    .bind(account)
    .fetch_all(&mut *transaction)
    .await?;
    outbox::enqueue_all(transaction, rows.iter().map(EdgeTokenRow::message)).await
}

/// Reads every token, locked until the transaction ends.
pub(crate) async fn all(transaction: &mut PgConnection) -> sqlx::Result<Vec<EdgeTokenRow>> {
    sqlx::query_as("SELECT id, workspace_id, token_sha256, revoked_at FROM edge_tokens FOR SHARE")
        .fetch_all(transaction)
        .await
}

/// A row of table `edge_tokens`, as edges need it.
#[derive(sqlx::FromRow)]
pub(crate) struct EdgeTokenRow {
    id: Uuid,
    workspace_id: Option<Uuid>,
    token_sha256: Vec<u8>,
    revoked_at: Option<DateTime<Utc>>,
}

impl EdgeTokenRow {
    /// Returns the message to the edges.
    pub(crate) fn message(&self) -> Outgoing {
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
