//! `GET` and `POST /app/api/workspaces`

use serde::{Deserialize, Serialize};
use serde_json::json;
use service::http::ApiError;

use crate::account::sessions::member::{Member, Owner};
use crate::app::App;
use crate::error::database;
use crate::store::audit::Of;
use crate::store::workspaces::{Kind, Workspace};
use crate::store::{accounts, audit, workspaces};
use crate::web::faults::{Faults, check_name};
use crate::web::request::Json;

/// Most workspaces that owners may create; operators may create more.
const MOST: i64 = 100;

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

/// Returns the workspaces of the member's account, the oldest first.
pub(crate) async fn list(member: Member, app: App) -> Result<Workspaces, ApiError> {
    let mut connection = app.pool.acquire().await.map_err(database)?;
    Ok(Workspaces {
        workspaces: workspaces::of_account(&mut connection, member.account).await.map_err(database)?,
    })
}

/// Creates a workspace of the owner's account.
pub(crate) async fn create(
    Owner(owner): Owner,
    Json(new): Json<New>,
    app: App,
) -> Result<Workspace, ApiError> {
    let name = new.name.trim();
    let mut faults = Faults::default();
    faults.note("name", check_name(name));
    faults.into_result()?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    // Serializes counting, so that two requests cannot both take the last place.
    accounts::take(&mut transaction, owner.account).await.map_err(database)?;
    if workspaces::count(&mut transaction, owner.account).await.map_err(database)? >= MOST {
        return Err(ApiError::plan_limit(format!("An account can have at most {MOST} workspaces.")));
    }
    let created =
        workspaces::insert(&mut transaction, owner.account, name, new.kind).await.map_err(database)?;
    let details = json!({ "name": name, "kind": new.kind.as_str() });
    audit::record(
        &mut transaction,
        &audit::member(owner.user),
        "create-workspace",
        &created.id.to_string(),
        Of::Account(owner.account),
        details,
    )
    .await
    .map_err(database)?;
    transaction.commit().await.map_err(database)?;
    Ok(created)
}
