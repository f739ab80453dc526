//! `GET` and `POST …/keys`, `DELETE …/keys/{id}`

use chrono::Utc;
use schemas::id::KeyId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use service::http::ApiError;
use uuid::Uuid;

use crate::account::token::{DEFAULT_NAME, PlainToken};
use crate::app::App;
use crate::error::database;
use crate::store::audit::Of;
use crate::store::keys::{Key, Scope};
use crate::store::{audit, keys, members};
use crate::web::caller::{Caller, Editor};
use crate::web::dates::parse_instant;
use crate::web::faults::{Faults, check_name};
use crate::web::page::{Paging, cut, encode_cursor};
use crate::web::request::{Json, Query};

/// Keys of a workspace, apart from revoked and expired ones, beyond which members can create none.
const MAX_KEYS: i64 = 100;

/// A page of a workspace's keys.
#[derive(Debug, Serialize)]
pub(crate) struct Keys {
    keys: Vec<Key>,
    next_cursor: Option<String>,
}

/// The place of a page's last key: its id, which begins with its time.
#[derive(Debug, Serialize, Deserialize)]
enum Cursor {
    #[serde(rename = "k")]
    Keys(Uuid),
}

/// The body.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct New {
    #[serde(default)]
    name: String,
    scope: Scope,
    expires_at: Option<String>,
}

/// The key, and its value, which is not shown again.
#[derive(Serialize)]
pub(crate) struct Created {
    #[serde(flatten)]
    shown: Key,
    key: String,
}

/// Returns a page of the keys of a workspace, including revoked ones, the newest first.
pub(crate) async fn list(caller: Caller, Query(paging): Query<Paging>, app: App) -> Result<Keys, ApiError> {
    let (limit, after) = paging.parse("keys")?;
    let before = after.map(|Cursor::Keys(id)| id);
    // One more row than the limit shows whether there is a next page.
    let mut keys =
        keys::page(&app.pool, caller.workspace, before, limit as i64 + 1).await.map_err(database)?;
    let next_cursor = cut(&mut keys, limit).map(|key| encode_cursor(&Cursor::Keys(key.id.uuid())));
    Ok(Keys { keys, next_cursor })
}

/// Creates a key, on every plan: what a key may do is decided when it is used. A 101st is rejected: 403, `PLAN_LIMIT`.
pub(crate) async fn create(
    Editor(caller): Editor,
    Json(new): Json<New>,
    app: App,
) -> Result<Created, ApiError> {
    let name = Some(new.name.trim()).filter(|name| !name.is_empty()).unwrap_or(DEFAULT_NAME);
    let mut faults = Faults::default();
    faults.note("name", check_name(name));
    let now = schemas::time::to_millis(Utc::now());
    let expires_at = match new.expires_at.as_deref().map(parse_instant).transpose() {
        Ok(Some(at)) if at <= now => {
            faults.add("expires_at", "must be in the future");
            None
        }
        Ok(at) => at,
        Err(fault) => {
            faults.add("expires_at", fault.to_string());
            None
        }
    };
    faults.into_result()?;
    let scope = new.scope.as_str();
    let key = PlainToken::api_key(&mut rand::rng());
    let shown = Key {
        id: KeyId::from_uuid(Uuid::now_v7()),
        name: name.to_owned(),
        prefix: key.display_prefix().to_owned(),
        scope: scope.to_owned(),
        created_at: now,
        expires_at,
        last_used_at: None,
        revoked_at: None,
        created_by: Some(caller.user),
    };
    let mut transaction = app.pool.begin().await.map_err(database)?;
    // A change of the role revokes the member's keys, and this one must not slip past it.
    if !members::may_change_links(&mut transaction, caller.user).await.map_err(database)? {
        return Err(ApiError::forbidden("You may no longer change this workspace."));
    }
    if keys::lock_and_count(&mut transaction, caller.workspace).await.map_err(database)? >= MAX_KEYS {
        return Err(ApiError::plan_limit(format!(
            "A workspace can have at most {MAX_KEYS} keys, on every plan. Revoke one that is not used."
        )));
    }
    keys::remove_old(&mut transaction, caller.workspace).await.map_err(database)?;
    keys::insert(&mut transaction, caller.workspace, &shown, &key.digest()).await.map_err(database)?;
    let details = json!({ "name": name, "scope": scope });
    audit::record(
        &mut transaction,
        &audit::member(caller.user),
        "create-key",
        &shown.id.to_string(),
        Of::Workspace(caller.workspace),
        details,
    )
    .await
    .map_err(database)?;
    transaction.commit().await.map_err(database)?;
    Ok(Created { shown, key: key.reveal().to_owned() })
}

/// Revokes a key. The next request with it is rejected.
pub(crate) async fn revoke(Editor(caller): Editor, id: KeyId, app: App) -> Result<(), ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    if !keys::revoke(&mut transaction, Some(caller.workspace), id).await.map_err(database)? {
        return Err(ApiError::not_found("There is no such key in this workspace."));
    }
    audit::record(
        &mut transaction,
        &audit::member(caller.user),
        "revoke-key",
        &id.to_string(),
        Of::Workspace(caller.workspace),
        json!({}),
    )
    .await
    .map_err(database)?;
    transaction.commit().await.map_err(database)
}
