//! Carries out the commands of `api admin`.

use schemas::id::{AccountId, EndpointId, WorkspaceId};
use serde_json::{Value, json};
use service::clickhouse::Clickhouse;
use sqlx::PgPool;
use uuid::Uuid;

use super::accounts::{
    create_account, create_user, create_workspace, reset_password, reset_two_factor, set_plan, show_account,
};
use super::args::{Admin, Command};
use super::blocks::{list_blocked, set_host_block, set_link_block, set_suspended};
use super::checks::{checked_name, hashed_password, wrong};
use super::delete_account::delete_account;
use super::export_account::export_account;
use super::keys::{create_edge_token, create_key, revoke_edge_token, revoke_key};
use super::publish::{publish_conversions, publish_links};
use super::reseal::reseal;
use super::trail::record;
use crate::account::members::check_email;
use crate::account::sessions::setup;
use crate::account::token::PlainToken;
use crate::app::App;
use crate::background::sweep::sweep_once;
use crate::resources::links::block::compare_all;
use crate::store::audit::Of;
use crate::store::members::NewMember;
use crate::store::role::Role;
use crate::store::{directory, endpoints};

/// Carries out a command and returns what to print.
pub(crate) async fn run(admin: Admin, app: &App, clickhouse: &Clickhouse) -> anyhow::Result<String> {
    let answer = carry_out(admin.command, app, clickhouse).await?;
    if admin.json {
        return Ok(answer.to_string());
    }
    Ok(lines(&answer, 0))
}

async fn carry_out(command: Command, app: &App, clickhouse: &Clickhouse) -> anyhow::Result<Value> {
    let pool = &app.pool;
    match command {
        Command::CreateAccount { name, plan } => {
            let (account, workspace) = create_account(pool, &checked_name(&name)?, plan).await?;
            Ok(json!({ "account_id": account, "workspace_id": workspace }))
        }
        Command::CreateWorkspace { account, name, kind } => {
            let workspace = create_workspace(pool, account, &checked_name(&name)?, kind)
                .await?
                .ok_or_else(|| no_account(account))?;
            Ok(json!({ "workspace_id": workspace }))
        }
        Command::CreateUser { account, email, name, role, password_stdin: _ } => {
            create_member(app, account, &email, &name, role).await
        }
        Command::ResetPassword { email, password_stdin: _ } => {
            let hash = hashed_password(app).await?;
            let id = reset_password(pool, &email, &hash)
                .await?
                .ok_or_else(|| anyhow::anyhow!("--email: no member has the address {email}"))?;
            Ok(json!({ "user_id": id }))
        }
        Command::SetupToken => Ok(json!({ "setup_token": setup::token(app) })),
        Command::CreateKey { workspace, name, scope, expires_at } => {
            let name = checked_name(&name)?;
            let key = PlainToken::api_key(&mut rand::rng());
            let id = create_key(pool, workspace, &key, &name, scope, expires_at)
                .await?
                .ok_or_else(|| no_workspace(workspace))?;
            Ok(json!({ "key_id": id, "key": key.reveal() }))
        }
        Command::RevokeKey { key_id } => {
            let revoked = revoke_key(pool, key_id).await?;
            anyhow::ensure!(revoked, "--key-id: there is no key {key_id}");
            Ok(json!({ "revoked": key_id }))
        }
        Command::SetPlan { account, plan } => {
            let (former, settled) = set_plan(app, account, plan).await?.ok_or_else(|| no_account(account))?;
            Ok(json!({
                "account_id": account,
                "plan": plan.as_str(),
                "former_plan": former.as_str(),
                "locked": settled.locked,
                "unlocked": settled.unlocked,
            }))
        }
        Command::CreateEdgeToken { workspace } => {
            let token = PlainToken::edge_token(&mut rand::rng());
            let id = create_edge_token(pool, workspace, &token).await?.map_err(no_workspace)?;
            Ok(json!({ "edge_token_id": id, "edge_token": token.reveal() }))
        }
        Command::RevokeEdgeToken { edge_token_id } => {
            let revoked = revoke_edge_token(pool, edge_token_id).await?;
            anyhow::ensure!(revoked, "--edge-token-id: there is no edge token {edge_token_id}");
            Ok(json!({ "revoked": edge_token_id }))
        }
        Command::PublishLinks { restored } => {
            Ok(json!({ "published": publish_links(pool, restored).await? }))
        }
        Command::PublishConversions { since } => {
            Ok(json!({ "published": publish_conversions(pool, since).await? }))
        }
        Command::EnableEndpoint { id } => {
            let changed = enable_endpoint(pool, id)
                .await?
                .ok_or_else(|| anyhow::anyhow!("--id: there is no webhook endpoint {id}"))?;
            Ok(json!({ "endpoint_id": id, "status": "enabled", "changed": changed }))
        }
        Command::ListAccounts => Ok(json!({ "accounts": directory::accounts(pool).await? })),
        Command::ListWorkspaces { account } => {
            Ok(json!({ "workspaces": directory::workspaces(pool, account).await? }))
        }
        Command::ListKeys { workspace } => Ok(json!({ "keys": directory::keys(pool, workspace).await? })),
        Command::FindLink { slug } => {
            let link = directory::link(pool, &slug).await?;
            let link = link.ok_or_else(|| anyhow::anyhow!("--slug: no link has the slug {slug}"))?;
            Ok(serde_json::to_value(link)?)
        }
        Command::BlockLink { id, reason } => set_link_block(app, id, Some(&reason)).await,
        Command::UnblockLink { id } => set_link_block(app, id, None).await,
        Command::BlockDestination { host } => set_host_block(app, &host, true).await,
        Command::UnblockDestination { host } => set_host_block(app, &host, false).await,
        Command::ListBlocked => list_blocked(app).await,
        Command::SuspendAccount { account, reason } => {
            set_suspended(app, account, Some(&reason)).await?.ok_or_else(|| no_account(account))
        }
        Command::ResumeAccount { account } => {
            set_suspended(app, account, None).await?.ok_or_else(|| no_account(account))
        }
        Command::DeleteAccount { account, confirm } => {
            delete_account(app, account, &confirm).await?.ok_or_else(|| no_account(account))
        }
        Command::ExportAccount { account, to } => {
            export_account(app, clickhouse, account, &to).await?.ok_or_else(|| no_account(account))
        }
        Command::Sweep => {
            let swept = sweep_once(app).await?;
            Ok(json!({ "removed": swept, "links": compare_all(app).await? }))
        }
        Command::Reseal => Ok(json!({ "resealed": reseal(app).await? })),
        Command::ResetTwoFactor { email } => {
            let id = reset_two_factor(app, &email)
                .await?
                .ok_or_else(|| anyhow::anyhow!("--email: no member has the address {email}"))?;
            Ok(json!({ "user_id": id }))
        }
        Command::AuditTrail { account, since, limit } => {
            Ok(json!({ "entries": directory::audit_trail(pool, account, since, limit).await? }))
        }
        Command::ShowAccount { account } => {
            show_account(app, account).await?.ok_or_else(|| no_account(account))
        }
    }
}

async fn create_member(
    app: &App,
    account: AccountId,
    email: &str,
    name: &str,
    role: Role,
) -> anyhow::Result<Value> {
    check_email(email).map_err(|fault| wrong("--email", fault))?;
    let name = if name.is_empty() { String::new() } else { checked_name(name)? };
    let hash = &hashed_password(app).await?;
    let member = NewMember { id: Uuid::now_v7(), account: account.uuid(), name: &name, email, role, hash };
    let id = create_user(&app.pool, &member).await?.ok_or_else(|| no_account(account))?;
    Ok(json!({ "user_id": id }))
}

async fn enable_endpoint(pool: &PgPool, id: EndpointId) -> sqlx::Result<Option<bool>> {
    let mut transaction = pool.begin().await?;
    let enabled = endpoints::enable(&mut transaction, id).await?;
    if enabled == Some(true) {
        record(&mut transaction, "enable-endpoint", &id.to_string(), Of::Endpoint(id.uuid()), json!({}))
            .await?;
    }
    transaction.commit().await?;
    Ok(enabled)
}

fn no_account(id: AccountId) -> anyhow::Error {
    anyhow::anyhow!("--account: there is no account {id}")
}

fn no_workspace(id: WorkspaceId) -> anyhow::Error {
    anyhow::anyhow!("--workspace: there is no workspace {id}")
}

/// Formats an answer for people: a line for each field.
fn lines(value: &Value, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let line = |key: &str, value: &Value| match value {
        Value::Object(_) | Value::Array(_) => format!("{indent}{key}:\n{}", lines(value, depth + 1)),
        Value::String(text) => format!("{indent}{key}: {text}\n"),
        other => format!("{indent}{key}: {other}\n"),
    };
    match value {
        Value::Object(fields) => fields.iter().map(|(key, value)| line(key, value)).collect(),
        Value::Array(items) => items.iter().map(|item| line("-", item)).collect(),
        other => format!("{indent}{other}\n"),
    }
}
