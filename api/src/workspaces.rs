//! `GET` and `POST /app/api/workspaces`

use schemas::id::WorkspaceId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use service::http::ApiError;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::App;
use crate::audit;
use crate::error::database;
use crate::faults::{Faults, check_text};
use crate::locks;
use crate::sessions::{Member, Owner};
use crate::web::request::Json;

/// Longest name, in characters.
const MAX_NAME: usize = 200;

/// Workspaces that an account's owners may make; the operator's command goes beyond.
const MOST: i64 = 100;

/// What a workspace is for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// One person's.
    Personal,
    /// Shared by the account's members.
    Organization,
}

impl Kind {
    /// The name in the database and in answers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Personal => "personal",
            Self::Organization => "organization",
        }
    }
}

/// A workspace as members see it.
#[derive(Debug, Serialize)]
pub(crate) struct Workspace {
    id: WorkspaceId,
    name: String,
    kind: String,
}

/// All of an account.
#[derive(Debug, Serialize)]
pub(crate) struct Workspaces {
    workspaces: Vec<Workspace>,
}

/// The body.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct New {
    name: String,
    kind: Kind,
}

/// Answers with the workspaces of the member's account, the oldest first.
pub(crate) async fn list(member: Member, app: App) -> Result<Workspaces, ApiError> {
    let mut connection = app.pool.acquire().await.map_err(database)?;
    Ok(Workspaces { workspaces: of_account(&mut connection, member.account).await.map_err(database)? })
}

/// Creates a workspace of the owner's account.
pub(crate) async fn create(
    Owner(owner): Owner,
    Json(new): Json<New>,
    app: App,
) -> Result<Workspace, ApiError> {
    let name = new.name.trim();
    let mut faults = Faults::default();
    faults.note("name", check_text(name, MAX_NAME));
    faults.into_result()?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    // Two that count at once would both find the last place.
    locks::take(&mut transaction, owner.account).await.map_err(database)?;
    if count(&mut transaction, owner.account).await.map_err(database)? >= MOST {
        return Err(ApiError::plan_limit(format!("An account can have at most {MOST} workspaces.")));
    }
    let id = insert(&mut transaction, owner.account, name, new.kind.as_str()).await.map_err(database)?;
    let details = json!({ "name": name, "kind": new.kind.as_str() });
    audit::record(&mut transaction, &audit::member(owner.user), "create-workspace", &id.to_string(), details)
        .await
        .map_err(database)?;
    transaction.commit().await.map_err(database)?;
    Ok(Workspace { id, name: name.to_owned(), kind: new.kind.as_str().to_owned() })
}

/// Reads the workspaces of an account, the oldest first.
pub(crate) async fn of_account(connection: &mut PgConnection, account: Uuid) -> sqlx::Result<Vec<Workspace>> {
    let rows: Vec<(Uuid, String, String)> =
        sqlx::query_as("SELECT id, name, kind FROM workspaces WHERE account_id = $1 ORDER BY created_at, id")
            .bind(account)
            .fetch_all(connection)
            .await?;
    let workspace = |(id, name, kind)| Workspace { id: WorkspaceId::from_uuid(id), name, kind };
    Ok(rows.into_iter().map(workspace).collect())
}

/// Counts the workspaces of an account; who has taken the account (see [`crate::locks`]) may rely on the number.
async fn count(connection: &mut PgConnection, account: Uuid) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT count(*) FROM workspaces WHERE account_id = $1")
        .bind(account)
        .fetch_one(connection)
        .await
}

/// Inserts a workspace.
pub(crate) async fn insert(
    transaction: &mut PgConnection,
    account: Uuid,
    name: &str,
    kind: &str,
) -> sqlx::Result<WorkspaceId> {
    let workspace = WorkspaceId::from_uuid(Uuid::now_v7());
    sqlx::query("INSERT INTO workspaces (id, account_id, name, kind) VALUES ($1, $2, $3, $4)")
        .bind(workspace.uuid())
        .bind(account)
        .bind(name)
        .bind(kind)
        .execute(transaction)
        .await?;
    Ok(workspace)
}
