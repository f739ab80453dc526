//! `DELETE /app/api/members/{id}`

use schemas::id::UserId;
use serde::Deserialize;
use serde_json::json;
use service::http::ApiError;

use super::refused;
use crate::account::sessions::member::Owner;
use crate::app::App;
use crate::error::database;
use crate::store::audit::Of;
use crate::store::{accounts, audit, keys, members, sessions};
use crate::web::request::Query;

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    /// Whether to revoke the keys that the member made.
    #[serde(default)]
    revoke_keys: bool,
}

/// Removes a member and ends the member's sessions. The member's links stay.
pub(crate) async fn remove(
    Owner(owner): Owner,
    id: UserId,
    Query(parameters): Query<Parameters>,
    app: App,
) -> Result<(), ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    // Two owners who remove each other at once must not both succeed.
    accounts::take(&mut transaction, owner.account).await.map_err(database)?;
    let outcome = members::remove(&mut transaction, owner.account, id.uuid()).await.map_err(database)?;
    if let Some(error) = refused(&outcome) {
        return Err(error);
    }
    let revoked = if parameters.revoke_keys {
        keys::revoke_of_member(&mut transaction, owner.account, id.uuid()).await.map_err(database)?
    } else {
        0
    };
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
