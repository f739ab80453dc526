//! Accounts, their members, workspaces and plans.

use anyhow::bail;
use schemas::id::{AccountId, UserId, WorkspaceId};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::trail::record;
use crate::account::quota::{self, Settled};
use crate::account::sessions::two_factor;
use crate::app::App;
use crate::plan::Plan;
use crate::resources::usage::Usage;
use crate::store::audit::Of;
use crate::store::members::NewMember;
use crate::store::workspaces::Kind;
use crate::store::{accounts, endpoints, members, workspaces};

/// Creates an account, its owner and its personal workspace.
pub(super) async fn create_account(
    pool: &PgPool,
    name: &str,
    plan: Plan,
) -> sqlx::Result<(AccountId, WorkspaceId)> {
    let mut transaction = pool.begin().await?;
    let (account, _) = accounts::insert(&mut transaction, name, plan).await?;
    let workspace = workspaces::insert(&mut transaction, account, name, Kind::Personal).await?.id;
    let account = AccountId::from_uuid(account);
    let details = json!({ "name": name, "plan": plan.as_str(), "workspace_id": workspace });
    record(&mut transaction, "create-account", &account.to_string(), Of::Account(account.uuid()), details)
        .await?;
    transaction.commit().await?;
    Ok((account, workspace))
}

/// Creates a workspace; `None` when there is no such account.
pub(super) async fn create_workspace(
    pool: &PgPool,
    account: AccountId,
    name: &str,
    kind: Kind,
) -> sqlx::Result<Option<WorkspaceId>> {
    let mut transaction = pool.begin().await?;
    if accounts::find(&mut transaction, account.uuid()).await?.is_none() {
        return Ok(None);
    }
    let workspace = workspaces::insert(&mut transaction, account.uuid(), name, kind).await?.id;
    let details = json!({ "account_id": account, "name": name, "kind": kind.as_str() });
    record(
        &mut transaction,
        "create-workspace",
        &workspace.to_string(),
        Of::Account(account.uuid()),
        details,
    )
    .await?;
    transaction.commit().await?;
    Ok(Some(workspace))
}

/// Creates a member who can sign in; `None` when there is no such account.
///
/// # Errors
/// When another member has the email address, or Postgres fails.
pub(super) async fn create_user(pool: &PgPool, user: &NewMember<'_>) -> anyhow::Result<Option<UserId>> {
    let id = UserId::from_uuid(user.id);
    let mut transaction = pool.begin().await?;
    if accounts::find(&mut transaction, user.account).await?.is_none() {
        return Ok(None);
    }
    if !members::insert(&mut transaction, user).await? {
        bail!("--email: another member has the address {}", user.email);
    }
    let account = AccountId::from_uuid(user.account);
    let details = json!({ "account_id": account, "email": user.email, "role": user.role.as_str() });
    record(&mut transaction, "create-user", &id.to_string(), Of::User(id.uuid()), details).await?;
    transaction.commit().await?;
    Ok(Some(id))
}

/// Gives a member a password and ends the member's sessions; `None` when no member has the email address.
pub(super) async fn reset_password(pool: &PgPool, email: &str, hash: &str) -> sqlx::Result<Option<UserId>> {
    let mut transaction = pool.begin().await?;
    let Some(id) = members::set_password(&mut transaction, email, hash).await? else { return Ok(None) };
    record(&mut transaction, "reset-password", &id.to_string(), Of::User(id.uuid()), json!({})).await?;
    transaction.commit().await?;
    Ok(Some(id))
}

/// Removes a member's second factor and ends the member's sessions; `None` when no member has the email address.
pub(super) async fn reset_two_factor(app: &App, email: &str) -> sqlx::Result<Option<UserId>> {
    let Some(found) = members::find(&app.pool, email).await? else { return Ok(None) };
    let mut transaction = app.pool.begin().await?;
    two_factor::reset(&mut transaction, app, found.id).await?;
    let id = UserId::from_uuid(found.id);
    record(&mut transaction, "reset-two-factor", &id.to_string(), Of::User(found.id), json!({})).await?;
    transaction.commit().await?;
    Ok(Some(id))
}

/// Changes an account's plan, and locks or unlocks its links; `None` when there is no such account.
///
/// Returns the former plan. Setting the same plan again applies a changed cap.
pub(super) async fn set_plan(
    app: &App,
    account: AccountId,
    plan: Plan,
) -> sqlx::Result<Option<(Plan, Settled)>> {
    let mut transaction = app.pool.begin().await?;
    let former = match accounts::take(&mut transaction, account.uuid()).await {
        Err(sqlx::Error::RowNotFound) => return Ok(None),
        former => former?,
    };
    accounts::set_plan(&mut transaction, account.uuid(), plan).await?;
    let settled = quota::settle(&mut transaction, app, account.uuid(), plan).await?;
    let details = json!({
        "plan": plan.as_str(),
        "former_plan": former.as_str(),
        "locked": settled.locked,
        "unlocked": settled.unlocked,
    });
    record(&mut transaction, "set-plan", &account.to_string(), Of::Account(account.uuid()), details).await?;
    // The plan decides whether the account's endpoints receive events.
    endpoints::raise_version(&mut transaction).await?;
    transaction.commit().await?;
    Ok(Some((former, settled)))
}

/// Shows an account with its members, its workspaces and how much of its plan is used; `None` when there is none.
pub(super) async fn show_account(app: &App, account: AccountId) -> sqlx::Result<Option<Value>> {
    let mut connection = app.pool.acquire().await?;
    let Some(row) = accounts::find(&mut connection, account.uuid()).await? else { return Ok(None) };
    let usage = Usage::of_account(app, &mut connection, account.uuid(), row.plan).await?;
    let members = members::all(&mut connection, account.uuid()).await?;
    let workspaces = workspaces::with_links(&mut connection, account.uuid()).await?;
    let member = |(id, email, role, created_at): (Uuid, Option<String>, String, _)| {
        json!({
            "user_id": UserId::from_uuid(id),
            "email": email,
            "role": role,
            "created_at": schemas::time::text(created_at),
        })
    };
    let workspace = |(id, name, kind, links): (Uuid, String, String, i64)| {
        let id = WorkspaceId::from_uuid(id);
        json!({ "workspace_id": id, "name": name, "kind": kind, "links": links })
    };
    let mut shown = json!({
        "account_id": account,
        "name": row.name,
        "created_at": schemas::time::text(row.created_at),
    });
    // Both are structs, so both are objects.
    if let (Some(shown), Ok(Value::Object(usage))) = (shown.as_object_mut(), serde_json::to_value(usage)) {
        shown.extend(usage);
    }
    shown["members"] = members.into_iter().map(member).collect();
    shown["workspaces"] = workspaces.into_iter().map(workspace).collect();
    Ok(Some(shown))
}
