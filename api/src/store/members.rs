//! Members of accounts.

use chrono::{DateTime, Utc};
use schemas::id::UserId;
use serde::Serialize;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use uuid::Uuid;

use crate::plan::Plan;
use crate::store::audit::Of;
use crate::store::role::Role;
use crate::store::workspaces::Kind;
use crate::store::{accounts, audit, sessions, two_factor, workspaces};

/// Advisory lock of the request that sets up: "setup" as ASCII.
const SETUP_LOCK: i64 = 0x73_6574_7570;

/// A member as members see each other.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct Member {
    #[sqlx(try_from = "Uuid")]
    pub(crate) id: UserId,
    pub(crate) name: String,
    pub(crate) email: String,
    pub(crate) role: String,
    /// Whether signing in takes a code. Only owners see it of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) two_factor: Option<bool>,
    #[serde(with = "schemas::time::millis")]
    pub(crate) created_at: DateTime<Utc>,
}

/// A member as signing in reads it.
#[derive(sqlx::FromRow)]
pub(crate) struct SignInRow {
    pub(crate) id: Uuid,
    /// A PHC string; none for a member who cannot sign in yet.
    pub(crate) password_hash: Option<String>,
    /// Since when signing in takes a code.
    pub(crate) totp_confirmed_at: Option<DateTime<Utc>>,
    /// Whether the account is suspended.
    pub(crate) is_suspended: bool,
}

/// The users whom members see: an account's first owner is one without an email address until the set-up.
const IS_MEMBER: &str = "removed_at IS NULL AND email IS NOT NULL";

/// The columns of [`Member`].
const MEMBER: &str = "id, name, email, role, totp_confirmed_at IS NOT NULL AS two_factor, created_at";

/// A member to insert.
pub(crate) struct NewMember<'a> {
    pub(crate) id: Uuid,
    pub(crate) account: Uuid,
    pub(crate) name: &'a str,
    pub(crate) email: &'a str,
    pub(crate) role: Role,
    /// A PHC string of the password.
    pub(crate) hash: &'a str,
}

/// Inserts a member who can sign in; false when another member has the email address. Postgres would log the address of
/// a row that its index rejects.
pub(crate) async fn insert(transaction: &mut PgConnection, member: &NewMember<'_>) -> sqlx::Result<bool> {
    let inserted = sqlx::query(
        "INSERT INTO users (id, account_id, name, email, role, password_hash) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (lower(email)) DO NOTHING",
    )
    .bind(member.id)
    .bind(member.account)
    .bind(member.name)
    .bind(member.email)
    .bind(member.role.as_str())
    .bind(member.hash)
    .execute(transaction)
    .await?;
    Ok(inserted.rows_affected() == 1)
}

/// Reads the members of an account who can sign in, the oldest first.
pub(crate) async fn list(pool: &PgPool, account: Uuid) -> sqlx::Result<Vec<Member>> {
    let sql = format!(
        "SELECT {MEMBER} FROM users
         WHERE account_id = $1 AND {IS_MEMBER} ORDER BY created_at, id"
    );
    sqlx::query_as(AssertSqlSafe(sql)).bind(account).fetch_all(pool).await
}

/// Reads id, email address, role and creation of every member of an account, the oldest first.
pub(crate) async fn all(
    connection: &mut PgConnection,
    account: Uuid,
) -> sqlx::Result<Vec<(Uuid, Option<String>, String, DateTime<Utc>)>> {
    sqlx::query_as(
        "SELECT id, email, role, created_at FROM users WHERE account_id = $1 AND removed_at IS NULL
         ORDER BY created_at, id",
    )
    .bind(account)
    .fetch_all(connection)
    .await
}

/// Finds the member with an email address, whatever its case.
pub(crate) async fn find(pool: &PgPool, email: &str) -> sqlx::Result<Option<SignInRow>> {
    sqlx::query_as(
        "SELECT u.id, u.password_hash, u.totp_confirmed_at, a.suspended_at IS NOT NULL AS is_suspended
         FROM users u JOIN accounts a ON a.id = u.account_id
         WHERE lower(u.email) = lower($1) AND u.removed_at IS NULL",
    )
    .bind(email)
    .fetch_optional(pool)
    .await
}

/// Returns whether no member can sign in yet.
pub(crate) async fn nobody_can_sign_in(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let found: Option<Uuid> = sqlx::query_scalar(
        "SELECT id FROM users WHERE password_hash IS NOT NULL AND removed_at IS NULL LIMIT 1",
    )
    .fetch_optional(connection)
    .await?;
    Ok(found.is_none())
}

/// Makes other transactions that set up a deployment wait until this one ends.
pub(crate) async fn lock_setup(transaction: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(SETUP_LOCK).execute(transaction).await?;
    Ok(())
}

/// The outcome of a removal, or of a change of a role.
pub(crate) enum Outcome {
    Done,
    LastOwner,
    NoSuchMember,
}

/// Returns why a member cannot stop to be an owner: there is no other one, or no such member.
async fn refuses_last_owner(
    transaction: &mut PgConnection,
    account: Uuid,
    id: Uuid,
) -> sqlx::Result<Option<Outcome>> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM users o WHERE o.account_id = $1 AND o.id <> $2 AND o.role = 'owner'
                        AND o.password_hash IS NOT NULL)
         FROM users WHERE id = $2 AND account_id = $1 AND {IS_MEMBER}"
    );
    let found = sqlx::query_scalar(AssertSqlSafe(sql)).bind(account).bind(id);
    match found.fetch_optional(&mut *transaction).await? {
        None => Ok(Some(Outcome::NoSuchMember)),
        Some(false) => Ok(Some(Outcome::LastOwner)),
        Some(true) => Ok(None),
    }
}

/// Changes a member's role. The last owner who can sign in stays one.
pub(crate) async fn set_role(
    transaction: &mut PgConnection,
    account: Uuid,
    id: Uuid,
    role: Role,
) -> sqlx::Result<Outcome> {
    if let Some(refused) = refuses_last_owner(&mut *transaction, account, id).await?
        && !(matches!(refused, Outcome::LastOwner) && matches!(role, Role::Owner))
    {
        return Ok(refused);
    }
    sqlx::query("UPDATE users SET role = $2 WHERE id = $1")
        .bind(id)
        .bind(role.as_str())
        .execute(transaction)
        .await?;
    Ok(Outcome::Done)
}

/// Reads a member of an account who can sign in.
pub(crate) async fn one(transaction: &mut PgConnection, id: Uuid) -> sqlx::Result<Member> {
    let sql = format!("SELECT {MEMBER} FROM users WHERE id = $1");
    sqlx::query_as(AssertSqlSafe(sql)).bind(id).fetch_one(transaction).await
}

/// Returns whether a member may change links. The answer holds until the transaction ends.
pub(crate) async fn may_change_links(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<bool> {
    let found: Option<bool> = sqlx::query_scalar(
        "SELECT role <> 'viewer' FROM users WHERE id = $1 AND removed_at IS NULL FOR SHARE",
    )
    .bind(id)
    .fetch_optional(connection)
    .await?;
    Ok(found.unwrap_or(false))
}

/// Returns whether an account has a member who can sign in.
pub(crate) async fn is_of_account(
    connection: &mut PgConnection,
    account: Uuid,
    id: Uuid,
) -> sqlx::Result<bool> {
    let sql = format!("SELECT EXISTS (SELECT FROM users WHERE id = $2 AND account_id = $1 AND {IS_MEMBER})");
    sqlx::query_scalar(AssertSqlSafe(sql)).bind(account).bind(id).fetch_one(connection).await
}

/// Reads the hash of a member's password.
pub(crate) async fn password_hash(pool: &PgPool, user: Uuid) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar("SELECT password_hash FROM users WHERE id = $1").bind(user).fetch_one(pool).await
}

/// Replaces a member's password, unless it has changed meanwhile; then false.
pub(crate) async fn replace_password(
    transaction: &mut PgConnection,
    user: Uuid,
    former: &str,
    hash: &str,
) -> sqlx::Result<bool> {
    let replaced = sqlx::query("UPDATE users SET password_hash = $3 WHERE id = $1 AND password_hash = $2")
        .bind(user)
        .bind(former)
        .bind(hash)
        .execute(transaction)
        .await?;
    Ok(replaced.rows_affected() == 1)
}

/// Clears a member's data. The row stays, because links refer to it.
pub(crate) async fn remove(transaction: &mut PgConnection, account: Uuid, id: Uuid) -> sqlx::Result<Outcome> {
    if let Some(refused) = refuses_last_owner(&mut *transaction, account, id).await? {
        return Ok(refused);
    }
    two_factor::remove(&mut *transaction, id).await?;
    sqlx::query(
        "UPDATE users SET removed_at = now(), role = 'editor', email = NULL, name = '', password_hash = NULL
         WHERE id = $1",
    )
    .bind(id)
    .execute(transaction)
    .await?;
    Ok(Outcome::Done)
}

/// Sets the sign-in of the first account's owner; creates the account, its owner and a workspace if there is none.
/// `None` when another member has the email address.
pub(crate) async fn set_first_owner(
    transaction: &mut PgConnection,
    name: &str,
    email: &str,
    hash: &str,
) -> sqlx::Result<Option<Uuid>> {
    let owner: Option<Uuid> = sqlx::query_scalar(
        "SELECT u.id FROM users u JOIN accounts a ON a.id = u.account_id
         WHERE u.role = 'owner' AND u.removed_at IS NULL ORDER BY a.created_at, a.id, u.created_at, u.id LIMIT 1",
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let user = match owner {
        Some(user) => user,
        None => {
            // The operator of a deployment is nobody's customer: the plan is the largest.
            let (account, owner) = accounts::insert(&mut *transaction, name, Plan::Business).await?;
            workspaces::insert(&mut *transaction, account, name, Kind::Personal).await?;
            owner
        }
    };
    let updated = sqlx::query(
        "UPDATE users SET name = $2, email = $3, password_hash = $4
         WHERE id = $1 AND NOT EXISTS (SELECT FROM users o WHERE lower(o.email) = lower($3) AND o.id <> $1)",
    )
    .bind(user)
    .bind(name)
    .bind(email)
    .bind(hash)
    .execute(&mut *transaction)
    .await?;
    if updated.rows_affected() == 0 {
        return Ok(None);
    }
    let subject = UserId::from_uuid(user).to_string();
    audit::record(
        transaction,
        &audit::member(user),
        "set-up",
        &subject,
        Of::User(user),
        json!({ "email": email }),
    )
    .await?;
    Ok(Some(user))
}

/// Changes a member's password and ends the member's sessions; `None` when no member has the email.
pub(crate) async fn set_password(
    transaction: &mut PgConnection,
    email: &str,
    hash: &str,
) -> sqlx::Result<Option<UserId>> {
    let user: Option<Uuid> = sqlx::query_scalar(
        "UPDATE users SET password_hash = $2 WHERE lower(email) = lower($1) AND removed_at IS NULL RETURNING id",
    )
    .bind(email)
    .bind(hash)
    .fetch_optional(&mut *transaction)
    .await?;
    if let Some(user) = user {
        sessions::end_all(transaction, user).await?;
    }
    Ok(user.map(UserId::from_uuid))
}
