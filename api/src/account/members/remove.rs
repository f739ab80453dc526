//! `DELETE /app/api/members/{id}`

use schemas::id::UserId;
use serde_json::json;
use service::http::ApiError;

use super::{Keys, refused};
use crate::account::sessions::member::Owner;
use crate::app::App;
use crate::error::database;
use crate::store::audit::Of;
use crate::store::{accounts, audit, members, sessions};
use crate::web::request::Query;

/// Removes a member, ends the member's sessions, and revokes the member's keys unless the query says not to. The
/// member's links stay; an import of the member stops.
pub(crate) async fn remove(
    Owner(owner): Owner,
    id: UserId,
    Query(parameters): Query<Keys>,
    app: App,
) -> Result<(), ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    // Two owners who remove each other at once must not both succeed.
    accounts::take(&mut transaction, owner.account).await.map_err(database)?;
    let outcome = members::remove(&mut transaction, owner.account, id.uuid()).await.map_err(database)?;
    if let Some(error) = refused(&outcome) {
        return Err(error);
    }
    let revoked = parameters.settle(&mut transaction, owner.account, id).await.map_err(database)?;
    sessions::end_all(&mut transaction, id.uuid()).await.map_err(database)?;
    let (actor, details) = (audit::member(owner.user), json!({ "revoked_keys": revoked }));
    audit::record(
        &mut transaction,
        &actor,
        "remove-user",
        &id.to_string(),
        Of::Account(owner.account),
        details,
    )
    .await
    .map_err(database)?;
    transaction.commit().await.map_err(database)
}
