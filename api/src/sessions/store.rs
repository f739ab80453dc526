//! The SQL of sessions and of those who sign in.

use schemas::id::{AccountId, UserId};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::Member;
use crate::App;
use crate::config::CountrySource;
use crate::plan::Plan;
use crate::workspaces::{self, Workspace};

/// Finds the member of a session, with the account's plan as it is now. A session ends 30 days after the sign-in, and
/// after 7 days without a request; that it was used is noted every few minutes, so that it costs no write each time.
const FIND: &str = "
    WITH session AS (
        SELECT s.token_sha256, s.seen_at, u.id AS user_id, u.role, a.id AS account_id, a.plan,
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
    SELECT user_id, role, account_id, plan, workspace_id FROM session";

#[derive(sqlx::FromRow)]
struct Row {
    user_id: Uuid,
    role: String,
    account_id: Uuid,
    #[sqlx(try_from = "String")]
    plan: Plan,
    workspace_id: Option<Uuid>,
}

/// Finds the member of a session.
pub(super) async fn find(
    app: &App,
    digest: &[u8; 32],
    workspace: Option<Uuid>,
) -> sqlx::Result<Option<Member>> {
    let row: Option<Row> =
        sqlx::query_as(FIND).bind(&digest[..]).bind(workspace).fetch_optional(&app.pool).await?;
    Ok(row.map(|row| Member {
        user: row.user_id,
        account: row.account_id,
        plan: row.plan,
        workspace: row.workspace_id,
        digest: *digest,
        is_owner: row.role == "owner",
    }))
}

/// Whether a session goes on.
pub(crate) async fn is_valid(app: &App, digest: &[u8; 32]) -> sqlx::Result<bool> {
    Ok(find(app, digest, None).await?.is_some())
}

/// Begins a session, and ends the one that the same browser had. Returns false when the member has another password by
/// now: checking one takes a while, and a password that was reset meanwhile must not begin a session.
pub(super) async fn begin(
    transaction: &mut PgConnection,
    digest: &[u8; 32],
    user: Uuid,
    password_hash: &str,
    former: Option<[u8; 32]>,
) -> sqlx::Result<bool> {
    if let Some(former) = former {
        end(&mut *transaction, &former).await?;
    }
    let begun = sqlx::query(
        "INSERT INTO sessions (token_sha256, user_id)
         SELECT $1, id FROM users WHERE id = $2 AND password_hash = $3 AND removed_at IS NULL FOR SHARE",
    )
    .bind(&digest[..])
    .bind(user)
    .bind(password_hash)
    .execute(transaction)
    .await?;
    Ok(begun.rows_affected() == 1)
}

/// Ends a session.
pub(super) async fn end(connection: &mut PgConnection, digest: &[u8; 32]) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM sessions WHERE token_sha256 = $1").bind(&digest[..]).execute(connection).await?;
    Ok(())
}

/// Ends every session of a member.
pub(crate) async fn end_all(connection: &mut PgConnection, user: Uuid) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM sessions WHERE user_id = $1").bind(user).execute(connection).await?;
    Ok(())
}

/// Removes what has ended: sessions, and attempts to sign in that count no more.
pub(super) async fn remove_ended(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM sessions WHERE seen_at < now() - interval '7 days' OR created_at < now() - interval '30 days'")
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM sign_in_attempts WHERE began_at < now() - interval '15 minutes'")
        .execute(connection)
        .await?;
    Ok(())
}

/// The member of an email, whatever its case, and the hash of the password.
pub(super) async fn find_user(app: &App, email: &str) -> sqlx::Result<Option<(Uuid, Option<String>)>> {
    sqlx::query_as(
        "SELECT id, password_hash FROM users WHERE lower(email) = lower($1) AND removed_at IS NULL",
    )
    .bind(email)
    .fetch_optional(&app.pool)
    .await
}

/// A member, as the page shows who is signed in.
#[derive(Debug, Serialize)]
pub(crate) struct Session {
    user: SessionUser,
    account: SessionAccount,
    workspaces: Vec<Workspace>,
    public_url: String,
    /// What must be shown where data of countries is, if their source asks for it.
    attribution: Option<Attribution>,
}

#[derive(Debug, Serialize)]
struct Attribution {
    text: &'static str,
    url: &'static str,
}

impl Attribution {
    const fn of(source: CountrySource) -> Option<Self> {
        match source {
            // In the words of the licence's terms; see NOTICE.
            CountrySource::DbIp => Some(Self { text: "IP Geolocation by DB-IP", url: "https://db-ip.com" }),
            CountrySource::Other => None,
        }
    }
}

#[derive(Debug, Serialize)]
struct SessionUser {
    id: UserId,
    name: String,
    email: String,
    role: String,
}

#[derive(Debug, Serialize)]
struct SessionAccount {
    id: AccountId,
    name: String,
    plan: String,
}

/// Reads what the page shows of who is signed in.
pub(super) async fn session(app: &App, user: Uuid) -> sqlx::Result<Session> {
    let mut connection = app.pool.acquire().await?;
    let (name, email, role, account, account_name, plan): (
        String,
        Option<String>,
        String,
        Uuid,
        String,
        String,
    ) = sqlx::query_as(
        "SELECT u.name, u.email, u.role, a.id, a.name, a.plan
             FROM users u JOIN accounts a ON a.id = u.account_id WHERE u.id = $1",
    )
    .bind(user)
    .fetch_one(&mut *connection)
    .await?;
    let workspaces = workspaces::of_account(&mut connection, account).await?;
    Ok(Session {
        user: SessionUser { id: UserId::from_uuid(user), name, email: email.unwrap_or_default(), role },
        account: SessionAccount { id: AccountId::from_uuid(account), name: account_name, plan },
        workspaces,
        public_url: app.public_url.as_str().trim_end_matches('/').to_owned(),
        attribution: Attribution::of(app.country_source),
    })
}
