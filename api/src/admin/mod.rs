//! `api admin …`: what operators do from the command line. Every change is in the audit trail.

mod store;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand, ValueEnum};
use schemas::id::{EdgeTokenId, KeyId, WorkspaceId};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::keys::Plain;
use crate::plan::Plan;

/// An operator's command.
#[derive(Debug, Clone, Args)]
pub struct Admin {
    #[command(subcommand)]
    command: Command,

    /// Print the answer as one line of JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Creates an account with an owner and a personal workspace.
    ///
    /// Example: api admin create-account --name "Corner shop" --plan business
    CreateAccount {
        /// Name of the account, and of its workspace.
        #[arg(long)]
        name: String,
        /// The account's plan.
        #[arg(long, value_enum)]
        plan: Plan,
    },
    /// Creates a workspace of an account.
    ///
    /// Example: api admin create-workspace --account acc_… --name Marketing --kind organization
    CreateWorkspace {
        /// The account's id.
        #[arg(long)]
        account: schemas::id::AccountId,
        /// Name of the workspace.
        #[arg(long)]
        name: String,
        /// What the workspace is for.
        #[arg(long, value_enum)]
        kind: Kind,
    },
    /// Creates an API key of a workspace and prints it, for the only time.
    ///
    /// Example: api admin create-key --workspace wsp_… --scope read,write
    CreateKey {
        /// The workspace's id.
        #[arg(long)]
        workspace: WorkspaceId,
        /// What the key may do.
        #[arg(long, value_enum)]
        scope: Scope,
        /// When the key stops working, such as 2027-01-31T12:00:00Z.
        #[arg(long)]
        expires_at: Option<DateTime<Utc>>,
    },
    /// Revokes an API key; it is refused from the next request on, for ever.
    ///
    /// Example: api admin revoke-key --key-id key_…
    RevokeKey {
        /// The key's id, not the key.
        #[arg(long)]
        key_id: KeyId,
    },
    /// Creates a token for an external redirect edge and prints it, for the only time.
    ///
    /// Example: api admin create-edge-token
    CreateEdgeToken {
        /// The only workspace whose clicks the edge may send; every workspace's when absent.
        #[arg(long)]
        workspace: Option<WorkspaceId>,
    },
    /// Revokes a token of an external redirect edge.
    ///
    /// Example: api admin revoke-edge-token --edge-token-id edg_…
    RevokeEdgeToken {
        /// The token's id, not the token.
        #[arg(long)]
        edge_token_id: EdgeTokenId,
    },
    /// Shows an account with its workspaces and how much of its plan is used.
    ///
    /// Example: api admin show-account --account acc_… --json
    ShowAccount {
        /// The account's id.
        #[arg(long)]
        account: schemas::id::AccountId,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// One person's.
    Personal,
    /// Shared by the account's members.
    Organization,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Personal => "personal",
            Self::Organization => "organization",
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scope {
    /// See links, clicks, statistics.
    Read,
    /// Also create, change and delete links and webhook endpoints.
    #[value(name = "read,write")]
    ReadWrite,
}

impl Scope {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadWrite => "read,write",
        }
    }
}

/// Carries out a command and returns what to print.
pub(crate) async fn run(admin: Admin, pool: &PgPool) -> anyhow::Result<String> {
    let answer = carry_out(admin.command, pool).await?;
    if admin.json {
        return Ok(answer.to_string());
    }
    Ok(lines(&answer, 0))
}

async fn carry_out(command: Command, pool: &PgPool) -> anyhow::Result<Value> {
    match command {
        Command::CreateAccount { name, plan } => {
            let (account, workspace) = store::create_account(pool, &non_empty(name)?, plan).await?;
            Ok(json!({ "account_id": account, "workspace_id": workspace }))
        }
        Command::CreateWorkspace { account, name, kind } => {
            let workspace = store::create_workspace(pool, account, &non_empty(name)?, kind.as_str())
                .await?
                .ok_or_else(|| anyhow::anyhow!("there is no account {account}"))?;
            Ok(json!({ "workspace_id": workspace }))
        }
        Command::CreateKey { workspace, scope, expires_at } => {
            let key = Plain::api_key(&mut rand::rng());
            let id = store::create_key(pool, workspace, &key, scope.as_str(), expires_at)
                .await?
                .ok_or_else(|| anyhow::anyhow!("there is no workspace {workspace}"))?;
            Ok(json!({ "key_id": id, "key": key.reveal() }))
        }
        Command::RevokeKey { key_id } => {
            let revoked = store::revoke_key(pool, key_id).await?;
            revoked
                .then(|| json!({ "revoked": key_id }))
                .ok_or_else(|| anyhow::anyhow!("there is no key {key_id}"))
        }
        Command::CreateEdgeToken { workspace } => {
            let token = Plain::edge_token(&mut rand::rng());
            let id = store::create_edge_token(pool, workspace, &token).await?;
            Ok(json!({ "edge_token_id": id, "edge_token": token.reveal() }))
        }
        Command::RevokeEdgeToken { edge_token_id } => {
            let revoked = store::revoke_edge_token(pool, edge_token_id).await?;
            revoked
                .then(|| json!({ "revoked": edge_token_id }))
                .ok_or_else(|| anyhow::anyhow!("there is no edge token {edge_token_id}"))
        }
        Command::ShowAccount { account } => store::show_account(pool, account)
            .await?
            .ok_or_else(|| anyhow::anyhow!("there is no account {account}")),
    }
}

fn non_empty(name: String) -> anyhow::Result<String> {
    let name = name.trim().to_owned();
    anyhow::ensure!(!name.is_empty(), "--name must not be empty");
    Ok(name)
}

/// An answer for people: a line for each field.
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
