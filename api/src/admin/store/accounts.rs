//! Accounts, their members, workspaces and plans.

use chrono::{DateTime, Utc};
use schemas::id::{AccountId, UserId, WorkspaceId};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::{account_exists, record};
use crate::App;
use crate::error::violates;
use crate::locks::{self, Settled};
use crate::members::store::NewMember;
use crate::plan::Plan;
use crate::usage::Usage;
use crate::{members, webhooks, workspaces};

/// Creates an account, its owner and its personal workspace.
pub(in crate::admin) async fn create_account(
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
    let workspace = workspaces::insert(&mut transaction, account.uuid(), name, "personal").await?;
    let details = json!({ "name": name, "plan": plan.as_str(), "workspace_id": workspace });
    record(&mut transaction, "create-account", &account.to_string(), details).await?;
    transaction.commit().await?;
    Ok((account, workspace))
}

/// Creates a workspace; `None` when there is no such account.
pub(in crate::admin) async fn create_workspace(
    pool: &PgPool,
    account: AccountId,
    name: &str,
    kind: &str,
) -> sqlx::Result<Option<WorkspaceId>> {
    let mut transaction = pool.begin().await?;
    if !account_exists(&mut transaction, account.uuid()).await? {
        return Ok(None);
    }
    let workspace = workspaces::insert(&mut transaction, account.uuid(), name, kind).await?;
    let details = json!({ "account_id": account, "name": name, "kind": kind });
    record(&mut transaction, "create-workspace", &workspace.to_string(), details).await?;
    transaction.commit().await?;
    Ok(Some(workspace))
}

/// What became of a member to be.
pub(in crate::admin) enum CreatedUser {
    Done(UserId),
    NoSuchAccount,
    EmailTaken,
}

/// Creates a member who can sign in.
pub(in crate::admin) async fn create_user(pool: &PgPool, user: &NewMember<'_>) -> sqlx::Result<CreatedUser> {
    let id = UserId::from_uuid(user.id);
    let mut transaction = pool.begin().await?;
    if !account_exists(&mut transaction, user.account).await? {
        return Ok(CreatedUser::NoSuchAccount);
    }
    match members::store::insert(&mut transaction, user).await {
        Ok(()) => {}
        Err(error) if violates(&error, "users_email") => return Ok(CreatedUser::EmailTaken),
        Err(error) => return Err(error),
    }
    let account = AccountId::from_uuid(user.account);
    let details = json!({ "account_id": account, "email": user.email, "role": user.role.as_str() });
    record(&mut transaction, "create-user", &id.to_string(), details).await?;
    transaction.commit().await?;
    Ok(CreatedUser::Done(id))
}

/// Gives a member a password and ends the member's sessions; none when nobody has the email.
pub(in crate::admin) async fn reset_password(
    pool: &PgPool,
    email: &str,
    hash: &str,
) -> sqlx::Result<Option<UserId>> {
    let mut transaction = pool.begin().await?;
    let Some(id) = members::store::set_password(&mut transaction, email, hash).await? else {
        return Ok(None);
    };
    record(&mut transaction, "reset-password", &id.to_string(), json!({})).await?;
    transaction.commit().await?;
    Ok(Some(id))
}

/// Gives an account a plan, and locks and unlocks links for it; `None` when there is no such account.
///
/// Returns the former plan. The same plan again settles the links by what the plan gives now.
pub(in crate::admin) async fn set_plan(
    app: &App,
    account: AccountId,
    plan: Plan,
) -> sqlx::Result<Option<(Plan, Settled)>> {
    let mut transaction = app.pool.begin().await?;
    let former = match locks::take(&mut transaction, account.uuid()).await {
        Err(sqlx::Error::RowNotFound) => return Ok(None),
        former => former?,
    };
    sqlx::query("UPDATE accounts SET plan = $2 WHERE id = $1")
        .bind(account.uuid())
        .bind(plan.as_str())
        .execute(&mut *transaction)
        .await?;
    let settled = locks::settle(&mut transaction, app, account.uuid(), plan).await?;
    let details = json!({
        "plan": plan.as_str(),
        "former_plan": former.as_str(),
        "locked": settled.locked,
        "unlocked": settled.unlocked,
    });
    record(&mut transaction, "set-plan", &account.to_string(), details).await?;
    // The plan decides whether the account's endpoints get events.
    webhooks::raise_version(&mut transaction).await?;
    transaction.commit().await?;
    Ok(Some((former, settled)))
}

/// An account with its members, its workspaces and how much of its plan is used; `None` when there is none.
pub(in crate::admin) async fn show_account(app: &App, account: AccountId) -> sqlx::Result<Option<Value>> {
    let mut connection = app.pool.acquire().await?;
    let row: Option<AccountRow> = sqlx::query_as("SELECT name, plan, created_at FROM accounts WHERE id = $1")
        .bind(account.uuid())
        .fetch_optional(&mut *connection)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let usage = Usage::of_account(app, &mut connection, account.uuid(), row.plan).await?;
    let members = members(&mut connection, account).await?;
    let workspaces = workspaces(&mut connection, account).await?;
    let mut shown = json!({
        "account_id": account,
        "name": row.name,
        "created_at": schemas::time::text(row.created_at),
    });
    // Both are structs, so both are objects.
    if let (Some(shown), Ok(Value::Object(usage))) = (shown.as_object_mut(), serde_json::to_value(usage)) {
        shown.extend(usage);
    }
    shown["members"] = json!(members);
    shown["workspaces"] = json!(workspaces);
    Ok(Some(shown))
}

#[derive(sqlx::FromRow)]
struct AccountRow {
    name: String,
    #[sqlx(try_from = "String")]
    plan: Plan,
    created_at: DateTime<Utc>,
}

async fn members(connection: &mut PgConnection, account: AccountId) -> sqlx::Result<Vec<Value>> {
    let rows: Vec<(Uuid, Option<String>, String, DateTime<Utc>)> = sqlx::query_as(
        "SELECT id, email, role, created_at FROM users WHERE account_id = $1 AND removed_at IS NULL
         ORDER BY created_at, id",
    )
    .bind(account.uuid())
    .fetch_all(connection)
    .await?;
    let member = |(id, email, role, created_at): (Uuid, Option<String>, String, DateTime<Utc>)| {
        json!({
            "user_id": UserId::from_uuid(id),
            "email": email,
            "role": role,
            "created_at": schemas::time::text(created_at),
        })
    };
    Ok(rows.into_iter().map(member).collect())
}

async fn workspaces(connection: &mut PgConnection, account: AccountId) -> sqlx::Result<Vec<Value>> {
    let rows: Vec<(Uuid, String, String, i64)> = sqlx::query_as(
        "SELECT w.id, w.name, w.kind, (SELECT count(*) FROM links l WHERE l.workspace_id = w.id)
         FROM workspaces w WHERE w.account_id = $1 ORDER BY w.created_at, w.id",
    )
    .bind(account.uuid())
    .fetch_all(connection)
    .await?;
    let workspace = |(id, name, kind, links): (Uuid, String, String, i64)| json!({ "workspace_id": WorkspaceId::from_uuid(id), "name": name, "kind": kind, "links": links });
    Ok(rows.into_iter().map(workspace).collect())
}
