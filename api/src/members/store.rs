//! The SQL of members.

use chrono::{DateTime, Utc};
use schemas::id::UserId;
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::Member;
use super::create::Role;
use crate::{audit, workspaces};

/// A member to be.
pub(crate) struct NewMember<'a> {
    pub(crate) id: Uuid,
    pub(crate) account: Uuid,
    pub(crate) name: &'a str,
    pub(crate) email: &'a str,
    pub(crate) role: Role,
    /// A PHC string of the password.
    pub(crate) hash: &'a str,
}

/// Inserts a member who can sign in; the index `users_email` refuses an email that somebody has.
pub(crate) async fn insert(transaction: &mut PgConnection, member: &NewMember<'_>) -> sqlx::Result<()> {
    sqlx::query(
        "INSERT INTO users (id, account_id, name, email, role, password_hash) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(member.id)
    .bind(member.account)
    .bind(member.name)
    .bind(member.email)
    .bind(member.role.as_str())
    .bind(member.hash)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Reads the members of an account who can sign in, the oldest first.
pub(super) async fn list(pool: &PgPool, account: Uuid) -> sqlx::Result<Vec<Member>> {
    let rows: Vec<(Uuid, String, String, String, DateTime<Utc>)> = sqlx::query_as(
        "SELECT id, name, email, role, created_at FROM users
         WHERE account_id = $1 AND removed_at IS NULL AND email IS NOT NULL ORDER BY created_at, id",
    )
    .bind(account)
    .fetch_all(pool)
    .await?;
    let member = |(id, name, email, role, created_at)| Member {
        id: UserId::from_uuid(id),
        name,
        email,
        role,
        created_at,
    };
    Ok(rows.into_iter().map(member).collect())
}

/// What became of a removal.
pub(super) enum Removed {
    Done,
    LastOwner,
    NoSuchMember,
}

/// Removes what is known of a member; the row stays, because links refer to it.
pub(super) async fn remove(transaction: &mut PgConnection, account: Uuid, id: Uuid) -> sqlx::Result<Removed> {
    let found: Option<bool> = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM users o WHERE o.account_id = $1 AND o.id <> $2 AND o.role = 'owner'
                        AND o.password_hash IS NOT NULL)
         FROM users WHERE id = $2 AND account_id = $1 AND removed_at IS NULL AND email IS NOT NULL",
    )
    .bind(account)
    .bind(id)
    .fetch_optional(&mut *transaction)
    .await?;
    match found {
        None => return Ok(Removed::NoSuchMember),
        Some(false) => return Ok(Removed::LastOwner),
        Some(true) => {}
    }
    sqlx::query(
        "UPDATE users SET removed_at = now(), role = 'member', email = NULL, name = '', password_hash = NULL
         WHERE id = $1",
    )
    .bind(id)
    .execute(transaction)
    .await?;
    Ok(Removed::Done)
}

/// Lets the owner of the first account sign in; makes an account, its owner and a workspace where there is none.
pub(crate) async fn set_first_owner(
    transaction: &mut PgConnection,
    name: &str,
    email: &str,
    hash: &str,
) -> sqlx::Result<Uuid> {
    let owner: Option<Uuid> = sqlx::query_scalar(
        "SELECT u.id FROM users u JOIN accounts a ON a.id = u.account_id
         WHERE u.role = 'owner' AND u.removed_at IS NULL ORDER BY a.created_at, a.id, u.created_at, u.id LIMIT 1",
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let user = match owner {
        Some(user) => user,
        None => {
            // Who runs Hopline is no customer of anybody: the plan is the largest.
            let account = Uuid::now_v7();
            sqlx::query("INSERT INTO accounts (id, name, plan) VALUES ($1, $2, 'business')")
                .bind(account)
                .bind(name)
                .execute(&mut *transaction)
                .await?;
            let user = Uuid::now_v7();
            sqlx::query("INSERT INTO users (id, account_id, role) VALUES ($1, $2, 'owner')")
                .bind(user)
                .bind(account)
                .execute(&mut *transaction)
                .await?;
            workspaces::insert(transaction, account, name, "personal").await?;
            user
        }
    };
    sqlx::query("UPDATE users SET name = $2, email = $3, password_hash = $4 WHERE id = $1")
        .bind(user)
        .bind(name)
        .bind(email)
        .bind(hash)
        .execute(&mut *transaction)
        .await?;
    let subject = UserId::from_uuid(user).to_string();
    audit::record(transaction, &audit::member(user), "set-up", &subject, json!({ "email": email })).await?;
    Ok(user)
}

/// Gives the member of an email a password and ends the sessions; none when there is no such member.
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
        crate::sessions::end_all(transaction, user).await?;
    }
    Ok(user.map(UserId::from_uuid))
}
