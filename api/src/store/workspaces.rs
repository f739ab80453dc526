//! Workspaces.

use schemas::id::WorkspaceId;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use uuid::Uuid;

/// What a workspace is for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// One person's.
    Personal,
    /// Shared by the account's members.
    Organization,
}

impl Kind {
    /// The name in the database and in answers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Personal => "personal",
            Self::Organization => "organization",
        }
    }
}

/// A workspace as members see it.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct Workspace {
    #[sqlx(try_from = "Uuid")]
    pub(crate) id: WorkspaceId,
    pub(crate) name: String,
    pub(crate) kind: String,
}

/// Inserts a workspace.
pub(crate) async fn insert(
    transaction: &mut PgConnection,
    account: Uuid,
    name: &str,
    kind: Kind,
) -> sqlx::Result<Workspace> {
    sqlx::query_as(
        "INSERT INTO workspaces (id, account_id, name, kind) VALUES ($1, $2, $3, $4) \
        RETURNING id, name, kind",
    )
    .bind(Uuid::now_v7())
    .bind(account)
    .bind(name)
    .bind(kind.as_str())
    .fetch_one(transaction)
    .await
}

/// Locks a workspace until the transaction ends. Transactions that count before they add take this lock.
pub(crate) async fn lock(transaction: &mut PgConnection, workspace: Uuid) -> sqlx::Result<()> {
    sqlx::query("SELECT FROM workspaces WHERE id = $1 FOR NO KEY UPDATE")
        .bind(workspace)
        .execute(transaction)
        .await?;
    Ok(())
}

/// Reads the workspaces of an account, the oldest first.
pub(crate) async fn of_account(connection: &mut PgConnection, account: Uuid) -> sqlx::Result<Vec<Workspace>> {
    sqlx::query_as("SELECT id, name, kind FROM workspaces WHERE account_id = $1 ORDER BY created_at, id")
        .bind(account)
        .fetch_all(connection)
        .await
}

/// Counts the workspaces of an account. The number holds while the transaction has taken the account
/// ([`super::accounts::take`]).
pub(crate) async fn count(transaction: &mut PgConnection, account: Uuid) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT count(*) FROM workspaces WHERE account_id = $1")
        .bind(account)
        .fetch_one(transaction)
        .await
}

/// Returns whether there is a workspace.
pub(crate) async fn exists(connection: &mut PgConnection, workspace: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM workspaces WHERE id = $1)")
        .bind(workspace)
        .fetch_one(connection)
        .await
}

/// Counts the links of each workspace of an account, the oldest workspace first.
pub(crate) async fn with_links(
    connection: &mut PgConnection,
    account: Uuid,
) -> sqlx::Result<Vec<(Uuid, String, String, i64)>> {
    sqlx::query_as(
        "SELECT w.id, w.name, w.kind, (SELECT count(*) FROM links l WHERE l.workspace_id = w.id)
         FROM workspaces w WHERE w.account_id = $1 ORDER BY w.created_at, w.id",
    )
    .bind(account)
    .fetch_all(connection)
    .await
}

/// Reads every workspace with the name of its account's plan.
pub(crate) async fn plans(connection: &mut PgConnection) -> sqlx::Result<Vec<(Uuid, String)>> {
    sqlx::query_as("SELECT w.id, a.plan FROM workspaces w JOIN accounts a ON a.id = w.account_id")
        .fetch_all(connection)
        .await
}
