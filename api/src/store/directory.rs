//! Lists for operators, over all accounts.

use chrono::{DateTime, Utc};
use schemas::id::{AccountId, KeyId, LinkId, WorkspaceId};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgPool;
use uuid::Uuid;

/// An account.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct Account {
    #[sqlx(try_from = "Uuid")]
    account_id: AccountId,
    name: String,
    plan: String,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
}

/// A workspace and its account.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct Workspace {
    #[sqlx(try_from = "Uuid")]
    workspace_id: WorkspaceId,
    #[sqlx(try_from = "Uuid")]
    account_id: AccountId,
    name: String,
    kind: String,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
}

/// A key and its workspace, without the key's value.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct Key {
    #[sqlx(try_from = "Uuid")]
    key_id: KeyId,
    #[sqlx(try_from = "Uuid")]
    workspace_id: WorkspaceId,
    name: String,
    #[sqlx(rename = "display_prefix")]
    prefix: String,
    scope: String,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
    #[serde(with = "schemas::time::optional_millis")]
    expires_at: Option<DateTime<Utc>>,
    #[serde(with = "schemas::time::optional_millis")]
    last_used_at: Option<DateTime<Utc>>,
    #[serde(with = "schemas::time::optional_millis")]
    revoked_at: Option<DateTime<Utc>>,
}

/// A link and its owner.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct Link {
    #[sqlx(try_from = "Uuid")]
    link_id: LinkId,
    #[sqlx(try_from = "Uuid")]
    workspace_id: WorkspaceId,
    #[sqlx(try_from = "Uuid")]
    account_id: AccountId,
    name: String,
    destination: String,
    is_active: bool,
    is_locked: bool,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
}

/// An entry of the audit trail.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct AuditEntry {
    #[serde(with = "schemas::time::millis")]
    at: DateTime<Utc>,
    actor: String,
    action: String,
    subject: String,
    details: Value,
}

/// Returns all accounts, the oldest first.
pub(crate) async fn accounts(pool: &PgPool) -> sqlx::Result<Vec<Account>> {
    sqlx::query_as("SELECT id AS account_id, name, plan, created_at FROM accounts ORDER BY created_at, id")
        .fetch_all(pool)
        .await
}

/// Returns the workspaces of one account or of all, the oldest first.
pub(crate) async fn workspaces(pool: &PgPool, account: Option<AccountId>) -> sqlx::Result<Vec<Workspace>> {
    sqlx::query_as(
        "SELECT id AS workspace_id, account_id, name, kind, created_at FROM workspaces
         WHERE $1::uuid IS NULL OR account_id = $1 ORDER BY created_at, id",
    )
    .bind(account.map(AccountId::uuid))
    .fetch_all(pool)
    .await
}

/// Returns the keys of one workspace or of all, the oldest first.
pub(crate) async fn keys(pool: &PgPool, workspace: Option<WorkspaceId>) -> sqlx::Result<Vec<Key>> {
    sqlx::query_as(
        "SELECT id AS key_id, workspace_id, name, display_prefix, scope,
                created_at, expires_at, last_used_at, revoked_at
         FROM api_keys WHERE $1::uuid IS NULL OR workspace_id = $1 ORDER BY created_at, id",
    )
    .bind(workspace.map(WorkspaceId::uuid))
    .fetch_all(pool)
    .await
}

/// Returns the link that has a slug.
pub(crate) async fn link(pool: &PgPool, slug: &str) -> sqlx::Result<Option<Link>> {
    sqlx::query_as(
        "SELECT l.id AS link_id, l.workspace_id, w.account_id, l.name, l.destination,
                l.is_active, l.is_locked, l.created_at
         FROM links l JOIN workspaces w ON w.id = l.workspace_id WHERE l.slug = $1",
    )
    .bind(slug)
    .fetch_optional(pool)
    .await
}

/// A blocked link and why.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct BlockedLink {
    #[sqlx(try_from = "Uuid")]
    link_id: LinkId,
    #[sqlx(try_from = "Uuid")]
    workspace_id: WorkspaceId,
    slug: String,
    destination: String,
    reason: Option<String>,
    host: Option<String>,
}

/// A suspended account.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct SuspendedAccount {
    #[sqlx(try_from = "Uuid")]
    account_id: AccountId,
    name: String,
    reason: Option<String>,
    #[serde(with = "schemas::time::millis")]
    suspended_at: DateTime<Utc>,
}

/// Returns the links that are blocked by themselves or by their host, the oldest first.
pub(crate) async fn blocked_links(pool: &PgPool) -> sqlx::Result<Vec<BlockedLink>> {
    sqlx::query_as(
        "SELECT id AS link_id, workspace_id, slug, destination, blocked_reason AS reason, blocked_host AS host
         FROM links WHERE is_blocked AND (blocked_reason IS NOT NULL OR blocked_host IS NOT NULL) ORDER BY id",
    )
    .fetch_all(pool)
    .await
}

/// Returns the suspended accounts, the oldest first.
pub(crate) async fn suspended_accounts(pool: &PgPool) -> sqlx::Result<Vec<SuspendedAccount>> {
    sqlx::query_as(
        "SELECT id AS account_id, name, suspended_reason AS reason, suspended_at
         FROM accounts WHERE suspended_at IS NOT NULL ORDER BY created_at, id",
    )
    .fetch_all(pool)
    .await
}

/// Returns the last entries of the audit trail since a time, of one account or of all, the newest first.
pub(crate) async fn audit_trail(
    pool: &PgPool,
    account: Option<AccountId>,
    since: Option<DateTime<Utc>>,
    limit: u32,
) -> sqlx::Result<Vec<AuditEntry>> {
    sqlx::query_as(
        "SELECT at, actor, action, subject, details FROM audit_trail
         WHERE ($1::timestamptz IS NULL OR at >= $1) AND ($3::uuid IS NULL OR account_id = $3)
         ORDER BY id DESC LIMIT $2",
    )
    .bind(since)
    .bind(i64::from(limit))
    .bind(account.map(AccountId::uuid))
    .fetch_all(pool)
    .await
}
