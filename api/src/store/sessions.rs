//! Sessions of members.

use chrono::{DateTime, Utc};
use schemas::id::SessionId;
use serde::Serialize;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::plan::Plan;
use crate::store::role::Role;

/// Finds the member of a session, with the account's present plan. A session ends 30 days after the sign-in, and after
/// 7 days without a request. `seen_at` is written at most every five minutes.
const FIND: &str = "
    WITH session AS (
        SELECT s.token_sha256, s.seen_at, u.id AS user_id, u.role, a.id AS account_id, a.plan, \
        a.suspended_at IS NOT NULL AS is_suspended,
               (SELECT w.id FROM workspaces w WHERE w.account_id = a.id AND w.id = $2) AS workspace_id
        FROM sessions s
        JOIN users u ON u.id = s.user_id
        JOIN accounts a ON a.id = u.account_id
        WHERE s.token_sha256 = $1 AND u.removed_at IS NULL
          AND s.created_at > now() - interval '30 days' AND s.seen_at > now() - interval '7 days'
    ), noted AS (
        UPDATE sessions AS s SET seen_at = now() FROM session
        WHERE s.token_sha256 = session.token_sha256 AND session.seen_at < now() - interval '5 minutes'
    )
    SELECT user_id, role, account_id, plan, is_suspended, workspace_id FROM session";

/// The member of a session, and the requested workspace if the account owns it.
#[derive(sqlx::FromRow)]
pub(crate) struct SessionRow {
    pub(crate) user_id: Uuid,
    #[sqlx(try_from = "String")]
    pub(crate) role: Role,
    pub(crate) account_id: Uuid,
    #[sqlx(try_from = "String")]
    pub(crate) plan: Plan,
    pub(crate) is_suspended: bool,
    pub(crate) workspace_id: Option<Uuid>,
}

/// Finds the member of a session.
pub(crate) async fn find(
    pool: &PgPool,
    digest: &[u8; 32],
    workspace: Option<Uuid>,
) -> sqlx::Result<Option<SessionRow>> {
    sqlx::query_as(FIND).bind(&digest[..]).bind(workspace).fetch_optional(pool).await
}

/// Most sessions of a member.
const MOST: i64 = 100;

/// Begins a session, and ends the browser's former one, and those beyond [`MOST`] that were not seen for longest.
/// Returns false when the password or the second factor was changed while it was being checked.
pub(crate) async fn begin(
    transaction: &mut PgConnection,
    digest: &[u8; 32],
    user: Uuid,
    password_hash: &str,
    two_factor_since: Option<DateTime<Utc>>,
    former: Option<[u8; 32]>,
    user_agent: &str,
) -> sqlx::Result<bool> {
    let begun = sqlx::query(
        "INSERT INTO sessions (token_sha256, user_id, user_agent)
         SELECT $1, id, $4 FROM users
         WHERE id = $2 AND password_hash = $3 AND removed_at IS NULL
           AND totp_confirmed_at IS NOT DISTINCT FROM $5 FOR SHARE",
    )
    .bind(&digest[..])
    .bind(user)
    .bind(password_hash)
    .bind(user_agent)
    .bind(two_factor_since)
    .execute(&mut *transaction)
    .await?;
    // After the member's row is locked, as everywhere.
    if let Some(former) = former {
        end(transaction, &former).await?;
    }
    sqlx::query(
        "DELETE FROM sessions WHERE user_id = $1 AND token_sha256 IN (
             SELECT token_sha256 FROM sessions WHERE user_id = $1 AND token_sha256 <> $2
             ORDER BY seen_at DESC, id DESC OFFSET $3)",
    )
    .bind(user)
    .bind(&digest[..])
    .bind(MOST - 1)
    .execute(&mut *transaction)
    .await?;
    Ok(begun.rows_affected() == 1)
}

/// Keeps a session until the transaction ends; false when it has ended.
pub(crate) async fn hold(transaction: &mut PgConnection, digest: &[u8; 32]) -> sqlx::Result<bool> {
    let found = sqlx::query("SELECT FROM sessions WHERE token_sha256 = $1 FOR SHARE")
        .bind(&digest[..])
        .fetch_optional(transaction)
        .await?;
    Ok(found.is_some())
}

/// Ends a session.
pub(crate) async fn end(connection: &mut PgConnection, digest: &[u8; 32]) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM sessions WHERE token_sha256 = $1").bind(&digest[..]).execute(connection).await?;
    Ok(())
}

/// Ends every session of a member.
pub(crate) async fn end_all(connection: &mut PgConnection, user: Uuid) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM sessions WHERE user_id = $1").bind(user).execute(connection).await?;
    Ok(())
}

/// Removes sessions that have ended. Returns how many.
pub(crate) async fn remove_ended(connection: &mut PgConnection) -> sqlx::Result<u64> {
    let removed = sqlx::query(
        "DELETE FROM sessions WHERE seen_at < now() - interval '7 days' \
        OR created_at < now() - interval '30 days'",
    )
    .execute(connection)
    .await?;
    Ok(removed.rows_affected())
}

/// A member and the account, as the dashboard shows them.
#[derive(sqlx::FromRow)]
pub(crate) struct SignedInRow {
    pub(crate) name: String,
    pub(crate) email: Option<String>,
    pub(crate) role: String,
    pub(crate) account_id: Uuid,
    pub(crate) account_name: String,
    pub(crate) plan: String,
    pub(crate) has_two_factor: bool,
}

/// Reads a member and the account.
pub(crate) async fn member(connection: &mut PgConnection, user: Uuid) -> sqlx::Result<SignedInRow> {
    sqlx::query_as(
        "SELECT u.name, u.email, u.role, a.id AS account_id, a.name AS account_name, a.plan,
                u.totp_confirmed_at IS NOT NULL AS has_two_factor
         FROM users u JOIN accounts a ON a.id = u.account_id WHERE u.id = $1",
    )
    .bind(user)
    .fetch_one(connection)
    .await
}

/// A session of a member, as the member sees it.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct Listed {
    #[sqlx(try_from = "Uuid")]
    id: SessionId,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
    /// Right to five minutes.
    #[serde(with = "schemas::time::millis")]
    last_seen_at: DateTime<Utc>,
    user_agent: String,
    is_current: bool,
}

/// Reads the sessions of a member that have not ended, the last seen first.
pub(crate) async fn list(pool: &PgPool, user: Uuid, current: &[u8; 32]) -> sqlx::Result<Vec<Listed>> {
    sqlx::query_as(
        "SELECT id, created_at, seen_at AS last_seen_at, user_agent, token_sha256 = $2 AS is_current FROM sessions
         WHERE user_id = $1 AND created_at > now() - interval '30 days' AND seen_at > now() - interval '7 days'
         ORDER BY seen_at DESC, id",
    )
    .bind(user)
    .bind(&current[..])
    .fetch_all(pool)
    .await
}

/// Ends a session of a member by its id; false when there is none.
pub(crate) async fn end_one(connection: &mut PgConnection, user: Uuid, id: SessionId) -> sqlx::Result<bool> {
    let ended = sqlx::query("DELETE FROM sessions WHERE user_id = $1 AND id = $2")
        .bind(user)
        .bind(id.uuid())
        .execute(connection)
        .await?;
    Ok(ended.rows_affected() == 1)
}

/// Ends every session of a member but one. Returns how many.
pub(crate) async fn end_others(
    connection: &mut PgConnection,
    user: Uuid,
    current: &[u8; 32],
) -> sqlx::Result<u64> {
    let ended = sqlx::query("DELETE FROM sessions WHERE user_id = $1 AND token_sha256 <> $2")
        .bind(user)
        .bind(&current[..])
        .execute(connection)
        .await?;
    Ok(ended.rows_affected())
}
