//! `api admin …`: what operators do from the command line. Every change is in the audit trail.

mod store;
mod user;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand, ValueEnum};
use schemas::id::{AccountId, EdgeTokenId, EndpointId, KeyId, WorkspaceId};
use serde_json::{Value, json};
use service::config::{Fault, Faults};
use uuid::Uuid;

use crate::App;
use crate::faults::check_text;
use crate::keys::{DEFAULT_NAME, Plain};
use crate::members::store::NewMember;
use crate::members::{self, Role};
use crate::plan::Plan;
use crate::sessions;
use crate::workspaces::Kind;
use store::CreatedUser;

/// Longest name of an account or a workspace, in characters.
const MAX_NAME: usize = 200;

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
        account: AccountId,
        /// Name of the workspace.
        #[arg(long)]
        name: String,
        /// What the workspace is for.
        #[arg(long, value_enum)]
        kind: Kind,
    },
    /// Creates a member of an account, who can sign in. Reads the password from standard input.
    ///
    /// Example: api admin create-user --account acc_… --email ada@example.com --password-stdin < password.txt
    CreateUser {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
        /// The member's email address; no two members of any account have the same, in whatever case.
        #[arg(long)]
        email: String,
        /// The member's name.
        #[arg(long, default_value = "")]
        name: String,
        /// What the member may do.
        #[arg(long, value_enum, default_value = "member")]
        role: Role,
        /// Read the password from standard input: one line of 12 characters or more.
        #[arg(long, required = true)]
        password_stdin: bool,
    },
    /// Changes a member's password and signs the member out. Reads the password from standard input.
    ///
    /// Example: api admin reset-password --email ada@example.com --password-stdin < password.txt
    ResetPassword {
        /// The member's email address.
        #[arg(long)]
        email: String,
        /// Read the password from standard input: one line of 12 characters or more.
        #[arg(long, required = true)]
        password_stdin: bool,
    },
    /// Prints the token that creates the owner at the dashboard, while nobody has signed in.
    ///
    /// Example: api admin setup-token
    SetupToken,
    /// Creates an API key for a workspace and prints it. It is not shown again.
    ///
    /// Example: api admin create-key --workspace wsp_… --name "Web shop" --scope read,write
    CreateKey {
        /// The workspace's id.
        #[arg(long)]
        workspace: WorkspaceId,
        /// What the key is called.
        #[arg(long, default_value = DEFAULT_NAME)]
        name: String,
        /// What the key may do.
        #[arg(long, value_enum)]
        scope: Scope,
        /// When the key stops working, such as 2027-01-31T12:00:00Z.
        #[arg(long)]
        expires_at: Option<DateTime<Utc>>,
    },
    /// Revokes an API key for good. The next request with it is rejected.
    ///
    /// Example: api admin revoke-key --key-id key_…
    RevokeKey {
        /// The key's id, not the key.
        #[arg(long)]
        key_id: KeyId,
    },
    /// Changes an account's plan. Locks its newest links above the plan's cap, and unlocks the others.
    ///
    /// The plan applies from the next request on. After a change of the plans file, run it with the account's own plan.
    ///
    /// Example: api admin set-plan --account acc_… --plan agency
    SetPlan {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
        /// The account's plan from now on.
        #[arg(long, value_enum)]
        plan: Plan,
    },
    /// Creates a token for an external redirect edge and prints it. It is not shown again.
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
    /// Publishes every link and edge token again, after Kafka has lost the topic `links`.
    ///
    /// Waits until Kafka has them, which needs a running API. May be interrupted and run again at any time.
    ///
    /// Example: api admin publish-links
    PublishLinks,
    /// Enables a disabled webhook endpoint. It gets the events from now on.
    ///
    /// Example: api admin enable-endpoint --id whe_…
    EnableEndpoint {
        /// The endpoint's id.
        #[arg(long)]
        id: EndpointId,
    },
    /// Shows an account: its members, its workspaces and how much of its plan is used.
    ///
    /// Example: api admin show-account --account acc_… --json
    ShowAccount {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
    },
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
pub(crate) async fn run(admin: Admin, app: &App) -> anyhow::Result<String> {
    let answer = carry_out(admin.command, app).await?;
    if admin.json {
        return Ok(answer.to_string());
    }
    Ok(lines(&answer, 0))
}

async fn carry_out(command: Command, app: &App) -> anyhow::Result<Value> {
    let pool = &app.pool;
    match command {
        Command::CreateAccount { name, plan } => {
            let (account, workspace) = store::create_account(pool, &checked_name(&name)?, plan).await?;
            Ok(json!({ "account_id": account, "workspace_id": workspace }))
        }
        Command::CreateWorkspace { account, name, kind } => {
            let workspace = store::create_workspace(pool, account, &checked_name(&name)?, kind.as_str())
                .await?
                .ok_or_else(|| no_account(account))?;
            Ok(json!({ "workspace_id": workspace }))
        }
        Command::CreateUser { account, email, name, role, password_stdin: _ } => {
            create_user(app, account, &email, &name, role).await
        }
        Command::ResetPassword { email, password_stdin: _ } => {
            let hash = hashed_password(app).await?;
            let id = store::reset_password(pool, &email, &hash)
                .await?
                .ok_or_else(|| anyhow::anyhow!("--email: no member has the address {email}"))?;
            Ok(json!({ "user_id": id }))
        }
        Command::SetupToken => Ok(json!({ "setup_token": sessions::setup_token(app) })),
        Command::CreateKey { workspace, name, scope, expires_at } => {
            let name = checked_name(&name)?;
            let key = Plain::api_key(&mut rand::rng());
            let id = store::create_key(pool, workspace, &key, &name, scope.as_str(), expires_at)
                .await?
                .ok_or_else(|| no_workspace(workspace))?;
            Ok(json!({ "key_id": id, "key": key.reveal() }))
        }
        Command::RevokeKey { key_id } => {
            let revoked = store::revoke_key(pool, key_id).await?;
            anyhow::ensure!(revoked, "--key-id: there is no key {key_id}");
            Ok(json!({ "revoked": key_id }))
        }
        Command::SetPlan { account, plan } => {
            let (former, settled) =
                store::set_plan(app, account, plan).await?.ok_or_else(|| no_account(account))?;
            Ok(json!({
                "account_id": account,
                "plan": plan.as_str(),
                "former_plan": former.as_str(),
                "locked": settled.locked,
                "unlocked": settled.unlocked,
            }))
        }
        Command::CreateEdgeToken { workspace } => {
            let token = Plain::edge_token(&mut rand::rng());
            let id = store::create_edge_token(pool, workspace, &token).await?.map_err(no_workspace)?;
            Ok(json!({ "edge_token_id": id, "edge_token": token.reveal() }))
        }
        Command::RevokeEdgeToken { edge_token_id } => {
            let revoked = store::revoke_edge_token(pool, edge_token_id).await?;
            anyhow::ensure!(revoked, "--edge-token-id: there is no edge token {edge_token_id}");
            Ok(json!({ "revoked": edge_token_id }))
        }
        Command::PublishLinks => Ok(json!({ "published": store::publish_links(pool).await? })),
        Command::EnableEndpoint { id } => {
            let changed = store::enable_endpoint(pool, id)
                .await?
                .ok_or_else(|| anyhow::anyhow!("--id: there is no webhook endpoint {id}"))?;
            Ok(json!({ "endpoint_id": id, "status": "enabled", "changed": changed }))
        }
        Command::ShowAccount { account } => {
            store::show_account(app, account).await?.ok_or_else(|| no_account(account))
        }
    }
}

async fn create_user(
    app: &App,
    account: AccountId,
    email: &str,
    name: &str,
    role: Role,
) -> anyhow::Result<Value> {
    members::check_email(email).map_err(|fault| wrong("--email", fault))?;
    let name = if name.is_empty() { String::new() } else { checked_name(name)? };
    let hash = &hashed_password(app).await?;
    let member = NewMember { id: Uuid::now_v7(), account: account.uuid(), name: &name, email, role, hash };
    match store::create_user(&app.pool, &member).await? {
        CreatedUser::Done(id) => Ok(json!({ "user_id": id })),
        CreatedUser::NoSuchAccount => Err(no_account(account)),
        CreatedUser::EmailTaken => Err(anyhow::anyhow!("--email: another member has the address {email}")),
    }
}

async fn hashed_password(app: &App) -> anyhow::Result<String> {
    // Reading waits for whoever types.
    let read = tokio::task::spawn_blocking(|| user::read_password(std::io::stdin()));
    let password = read.await.context("reading the password")??;
    Ok(app.hashing.hash(password).await?)
}

/// A value that no command line may have: wrong usage, like what the parser rejects.
fn wrong(option: &str, fault: impl Into<String>) -> anyhow::Error {
    Faults::from(Fault::new(option, fault)).into()
}

fn no_account(id: AccountId) -> anyhow::Error {
    anyhow::anyhow!("--account: there is no account {id}")
}

fn no_workspace(id: WorkspaceId) -> anyhow::Error {
    anyhow::anyhow!("--workspace: there is no workspace {id}")
}

fn checked_name(name: &str) -> anyhow::Result<String> {
    let name = name.trim();
    check_text(name, MAX_NAME).map_err(|fault| wrong("--name", fault))?;
    Ok(name.to_owned())
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
