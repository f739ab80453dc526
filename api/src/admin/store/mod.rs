//! The SQL of the operator's commands. Each writes its line of the audit trail in its own transaction.

mod accounts;
mod endpoints;
mod keys;
mod links;

use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::audit;

pub(super) use accounts::{
    CreatedUser, create_account, create_user, create_workspace, reset_password, set_plan, show_account,
};
pub(super) use endpoints::enable_endpoint;
pub(super) use keys::{create_edge_token, create_key, revoke_edge_token, revoke_key};
pub(super) use links::publish_links;

async fn account_exists(transaction: &mut PgConnection, id: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM accounts WHERE id = $1)")
        .bind(id)
        .fetch_one(transaction)
        .await
}

async fn workspace_exists(transaction: &mut PgConnection, id: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM workspaces WHERE id = $1)")
        .bind(id)
        .fetch_one(transaction)
        .await
}

async fn record(
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
    audit::record(transaction, &actor, action, subject, details).await
}
