//! `DELETE /app/api/members/{id}`

use schemas::id::UserId;
use serde_json::json;
use service::http::ApiError;

use crate::account::sessions::member::Owner;
use crate::app::App;
use crate::error::database;
use crate::store::{accounts, audit, members, sessions};

/// Removes a member and ends the member's sessions. The member's links stay.
pub(crate) async fn remove(Owner(owner): Owner, id: UserId, app: App) -> Result<(), ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    // Two owners who remove each other at once must not both succeed.
    accounts::take(&mut transaction, owner.account).await.map_err(database)?;
    match members::remove(&mut transaction, owner.account, id.uuid()).await.map_err(database)? {
        members::Removed::Done => {}
        members::Removed::LastOwner => {
            return Err(ApiError::forbidden("The account needs at least one owner who can sign in."));
        }
        members::Removed::NoSuchMember => {
            return Err(ApiError::not_found("There is no such member in your account."));
        }
    }
    sessions::end_all(&mut transaction, id.uuid()).await.map_err(database)?;
    audit::record(&mut transaction, &audit::member(owner.user), "remove-user", &id.to_string(), json!({}))
        .await
        .map_err(database)?;
    transaction.commit().await.map_err(database)
}
