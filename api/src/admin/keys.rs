//! API keys, and the tokens of external redirect edges.

use chrono::{DateTime, Utc};
use schemas::id::{EdgeTokenId, KeyId, WorkspaceId};
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use super::trail::record;
use crate::account::token::PlainToken;
use crate::store::audit::Of;
use crate::store::keys::{self, Key, Scope};
use crate::store::{edge_tokens, workspaces};

/// Inserts a key; `None` when there is no such workspace.
pub(super) async fn create_key(
    pool: &PgPool,
    workspace: WorkspaceId,
    key: &PlainToken,
    name: &str,
    scope: Scope,
    expires_at: Option<DateTime<Utc>>,
) -> sqlx::Result<Option<KeyId>> {
    let mut transaction = pool.begin().await?;
    if !workspaces::exists(&mut transaction, workspace.uuid()).await? {
        return Ok(None);
    }
    let id = KeyId::from_uuid(Uuid::now_v7());
    let row = Key {
        id,
        name: name.to_owned(),
        prefix: key.display_prefix().to_owned(),
        scope: scope.as_str().to_owned(),
        created_at: Utc::now(),
        expires_at,
        last_used_at: None,
        revoked_at: None,
        created_by: None,
    };
    keys::insert(&mut transaction, workspace.uuid(), &row, &key.digest()).await?;
    let details =
        json!({ "workspace_id": workspace, "name": name, "scope": scope.as_str(), "expires_at": expires_at });
    record(&mut transaction, "create-key", &id.to_string(), Of::Key(id.uuid()), details).await?;
    transaction.commit().await?;
    Ok(Some(id))
}

/// Revokes a key; false when there is none.
pub(super) async fn revoke_key(pool: &PgPool, key: KeyId) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    if !keys::revoke(&mut transaction, None, key).await? {
        return Ok(false);
    }
    record(&mut transaction, "revoke-key", &key.to_string(), Of::Key(key.uuid()), json!({})).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Creates a token; `Err` is a workspace that does not exist.
pub(super) async fn create_edge_token(
    pool: &PgPool,
    workspace: Option<WorkspaceId>,
    token: &PlainToken,
) -> sqlx::Result<Result<EdgeTokenId, WorkspaceId>> {
    let mut transaction = pool.begin().await?;
    if let Some(workspace) = workspace
        && !workspaces::exists(&mut transaction, workspace.uuid()).await?
    {
        return Ok(Err(workspace));
    }
    let id = edge_tokens::insert(&mut transaction, workspace, &token.digest()).await?;
    let of = workspace.map_or(Of::Nobody, |workspace| Of::Workspace(workspace.uuid()));
    record(&mut transaction, "create-edge-token", &id.to_string(), of, json!({ "workspace_id": workspace }))
        .await?;
    transaction.commit().await?;
    Ok(Ok(id))
}

/// Revokes a token; false when there is none.
pub(super) async fn revoke_edge_token(pool: &PgPool, id: EdgeTokenId) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    if !edge_tokens::revoke(&mut transaction, id).await? {
        return Ok(false);
    }
    record(&mut transaction, "revoke-edge-token", &id.to_string(), Of::Nobody, json!({})).await?;
    transaction.commit().await?;
    Ok(true)
}
