//! `PATCH /app/api/members/{id}`

use schemas::id::UserId;
use serde::Deserialize;
use serde_json::json;
use service::http::ApiError;

use super::{Keys, refused};
use crate::account::sessions::member::Owner;
use crate::app::App;
use crate::error::database;
use crate::store::audit::Of;
use crate::store::members::Member;
use crate::store::role::Role;
use crate::store::{accounts, audit, members};
use crate::web::request::{Json, Query};

/// The body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    role: Role,
}

/// Changes a member's role, from the member's next request on. A viewer's keys are revoked unless the query says not
/// to, and a viewer's import stops.
pub(crate) async fn set_role(
    Owner(owner): Owner,
    id: UserId,
    Query(parameters): Query<Keys>,
    Json(Change { role }): Json<Change>,
    app: App,
) -> Result<Member, ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    // Two owners who demote each other at once must not both succeed.
    accounts::take(&mut transaction, owner.account).await.map_err(database)?;
    let outcome = members::set_role(&mut transaction, owner.account, id.uuid(), role).await;
    if let Some(error) = refused(&outcome.map_err(database)?) {
        return Err(error);
    }
    let mut details = json!({ "role": role.as_str() });
    if matches!(role, Role::Viewer) {
        let revoked = parameters.settle(&mut transaction, owner.account, id).await.map_err(database)?;
        details["revoked_keys"] = revoked.into();
    }
    let actor = audit::member(owner.user);
    audit::record(&mut transaction, &actor, "set-role", &id.to_string(), Of::Account(owner.account), details)
        .await
        .map_err(database)?;
    let member = members::one(&mut transaction, id.uuid()).await.map_err(database)?;
    transaction.commit().await.map_err(database)?;
    Ok(member)
}
