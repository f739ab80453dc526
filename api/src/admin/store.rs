//! The SQL of the operator's commands. Each writes its line of the audit trail in its own transaction.

use chrono::{DateTime, Utc};
use schemas::id::{AccountId, EdgeTokenId, KeyId, WorkspaceId};
use schemas::message::{EdgeToken, Message as _, Version};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::keys::Plain;
use crate::outbox;
use crate::plan::Plan;

/// Creates an account, its owner and its personal workspace.
pub(super) async fn create_account(
    pool: &PgPool,
    name: &str,
    plan: Plan,
) -> sqlx::Result<(AccountId, WorkspaceId)> {
    let account = AccountId::from_uuid(Uuid::now_v7());
    let mut transaction = pool.begin().await?;
    sqlx::query("INSERT INTO accounts (id, name, plan) VALUES ($1, $2, $3)")
        .bind(account.uuid())
        .bind(name)
        .bind(plan.as_str())
        .execute(&mut *transaction)
        .await?;
    sqlx::query("INSERT INTO users (id, account_id, role) VALUES ($1, $2, 'owner')")
        .bind(Uuid::now_v7())
        .bind(account.uuid())
        .execute(&mut *transaction)
        .await?;
    let workspace = insert_workspace(&mut transaction, account, name, "personal").await?;
    let details = json!({ "name": name, "plan": plan.as_str(), "workspace_id": workspace });
    audit(&mut transaction, "create-account", &account.to_string(), details).await?;
    transaction.commit().await?;
    Ok((account, workspace))
}

/// Creates a workspace; `None` when there is no such account.
pub(super) async fn create_workspace(
    pool: &PgPool,
    account: AccountId,
    name: &str,
    kind: &str,
) -> sqlx::Result<Option<WorkspaceId>> {
    let mut transaction = pool.begin().await?;
    if !exists(&mut transaction, "SELECT EXISTS (SELECT FROM accounts WHERE id = $1)", account.uuid()).await?
    {
        return Ok(None);
    }
    let workspace = insert_workspace(&mut transaction, account, name, kind).await?;
    let details = json!({ "account_id": account, "name": name, "kind": kind });
    audit(&mut transaction, "create-workspace", &workspace.to_string(), details).await?;
    transaction.commit().await?;
    Ok(Some(workspace))
}

async fn insert_workspace(
    transaction: &mut PgConnection,
    account: AccountId,
    name: &str,
    kind: &str,
) -> sqlx::Result<WorkspaceId> {
    let workspace = WorkspaceId::from_uuid(Uuid::now_v7());
    sqlx::query("INSERT INTO workspaces (id, account_id, name, kind) VALUES ($1, $2, $3, $4)")
        .bind(workspace.uuid())
        .bind(account.uuid())
        .bind(name)
        .bind(kind)
        .execute(transaction)
        .await?;
    Ok(workspace)
}

/// Stores a key's digest; `None` when there is no such workspace.
pub(super) async fn create_key(
    pool: &PgPool,
    workspace: WorkspaceId,
    key: &Plain,
    scope: &str,
    expires_at: Option<DateTime<Utc>>,
) -> sqlx::Result<Option<KeyId>> {
    let id = KeyId::from_uuid(Uuid::now_v7());
    let mut transaction = pool.begin().await?;
    if !exists(&mut transaction, "SELECT EXISTS (SELECT FROM workspaces WHERE id = $1)", workspace.uuid())
        .await?
    {
        return Ok(None);
    }
    sqlx::query(
        "INSERT INTO api_keys (id, workspace_id, key_sha256, display_prefix, scope, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(id.uuid())
    .bind(workspace.uuid())
    .bind(&key.digest()[..])
    .bind(key.display_prefix())
    .bind(scope)
    .bind(expires_at)
    .execute(&mut *transaction)
    .await?;
    let details = json!({ "workspace_id": workspace, "scope": scope, "expires_at": expires_at });
    audit(&mut transaction, "create-key", &id.to_string(), details).await?;
    transaction.commit().await?;
    Ok(Some(id))
}

/// Revokes a key; false when there is none. A key that was revoked before keeps its time.
pub(super) async fn revoke_key(pool: &PgPool, key: KeyId) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    let found = sqlx::query("UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1")
        .bind(key.uuid())
        .execute(&mut *transaction)
        .await?
        .rows_affected();
    if found == 0 {
        return Ok(false);
    }
    audit(&mut transaction, "revoke-key", &key.to_string(), json!({})).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Stores a token's digest and tells the edges.
pub(super) async fn create_edge_token(
    pool: &PgPool,
    workspace: Option<WorkspaceId>,
    token: &Plain,
) -> sqlx::Result<EdgeTokenId> {
    let id = EdgeTokenId::from_uuid(Uuid::now_v7());
    let mut transaction = pool.begin().await?;
    sqlx::query("INSERT INTO edge_tokens (id, workspace_id, token_sha256) VALUES ($1, $2, $3)")
        .bind(id.uuid())
        .bind(workspace.map(WorkspaceId::uuid))
        .bind(&token.digest()[..])
        .execute(&mut *transaction)
        .await?;
    tell_edges(&mut transaction, id, workspace, &token.digest(), None).await?;
    audit(&mut transaction, "create-edge-token", &id.to_string(), json!({ "workspace_id": workspace }))
        .await?;
    transaction.commit().await?;
    Ok(id)
}

/// Revokes a token and tells the edges; false when there is none.
pub(super) async fn revoke_edge_token(pool: &PgPool, id: EdgeTokenId) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    let row: Option<(Option<Uuid>, Vec<u8>, DateTime<Utc>)> = sqlx::query_as(
        "UPDATE edge_tokens SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1
         RETURNING workspace_id, token_sha256, revoked_at",
    )
    .bind(id.uuid())
    .fetch_optional(&mut *transaction)
    .await?;
    let Some((workspace, digest, revoked_at)) = row else { return Ok(false) };
    let workspace = workspace.map(WorkspaceId::from_uuid);
    tell_edges(&mut transaction, id, workspace, &digest, Some(revoked_at)).await?;
    audit(&mut transaction, "revoke-edge-token", &id.to_string(), json!({})).await?;
    transaction.commit().await?;
    Ok(true)
}

async fn tell_edges(
    transaction: &mut PgConnection,
    id: EdgeTokenId,
    workspace: Option<WorkspaceId>,
    digest: &[u8],
    revoked_at: Option<DateTime<Utc>>,
) -> sqlx::Result<()> {
    let token = EdgeToken {
        version: Version,
        edge_token_id: id,
        token_sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        workspace_id: workspace,
        revoked_at,
    };
    outbox::enqueue(transaction, schemas::topic::LINKS, &token.key(), &token.encode()).await
}

/// An account, its workspaces and how many links they have; `None` when there is none.
pub(super) async fn show_account(pool: &PgPool, account: AccountId) -> sqlx::Result<Option<Value>> {
    let row: Option<(String, String, DateTime<Utc>)> =
        sqlx::query_as("SELECT name, plan, created_at FROM accounts WHERE id = $1")
            .bind(account.uuid())
            .fetch_optional(pool)
            .await?;
    let Some((name, plan, created_at)) = row else { return Ok(None) };
    let workspaces: Vec<(Uuid, String, String, i64)> = sqlx::query_as(
        "SELECT w.id, w.name, w.kind, (SELECT count(*) FROM links l WHERE l.workspace_id = w.id)
         FROM workspaces w WHERE w.account_id = $1 ORDER BY w.created_at, w.id",
    )
    .bind(account.uuid())
    .fetch_all(pool)
    .await?;
    let workspaces: Vec<Value> = workspaces
        .into_iter()
        .map(|(id, name, kind, links)| {
            json!({ "workspace_id": WorkspaceId::from_uuid(id), "name": name, "kind": kind, "links": links })
        })
        .collect();
    Ok(Some(json!({
        "account_id": account,
        "name": name,
        "plan": plan,
        "created_at": schemas::time::text(created_at),
        "workspaces": workspaces,
    })))
}

async fn exists(transaction: &mut PgConnection, query: &'static str, id: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar(query).bind(id).fetch_one(transaction).await
}

async fn audit(
    transaction: &mut PgConnection,
    action: &str,
    subject: &str,
    details: Value,
) -> sqlx::Result<()> {
    // Who is logged in on the machine; an operator's command knows no other name.
    let actor = ["SUDO_USER", "USER", "LOGNAME"]
        .into_iter()
        .find_map(|variable| std::env::var(variable).ok())
        .unwrap_or_else(|| "operator".to_owned());
    sqlx::query("INSERT INTO audit_trail (actor, action, subject, details) VALUES ($1, $2, $3, $4)")
        .bind(actor)
        .bind(action)
        .bind(subject)
        .bind(details)
        .execute(transaction)
        .await?;
    Ok(())
}
