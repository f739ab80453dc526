//! `DELETE /app/api/members/{id}/two-factor`

use schemas::id::UserId;
use serde_json::json;
use service::http::ApiError;

use super::no_such_member;
use crate::account::sessions::member::Owner;
use crate::account::sessions::two_factor;
use crate::app::App;
use crate::error::database;
use crate::store::audit::Of;
use crate::store::{audit, members};

/// Removes the second factor of another member, who lost it, and ends the member's sessions.
///
/// # Errors
/// 403 for the owner's own, which takes the password and a code; 404 for a member of another account.
pub(crate) async fn two_factor(Owner(owner): Owner, id: UserId, app: App) -> Result<(), ApiError> {
    if id.uuid() == owner.user {
        return Err(ApiError::forbidden(
            "You cannot reset your own second factor here. Switch it off with your password and a code.",
        ));
    }
    let mut transaction = app.pool.begin().await.map_err(database)?;
    if !members::is_of_account(&mut transaction, owner.account, id.uuid()).await.map_err(database)? {
        return Err(no_such_member());
    }
    two_factor::reset(&mut transaction, &app, id.uuid()).await.map_err(database)?;
    let (actor, of) = (audit::member(owner.user), Of::Account(owner.account));
    audit::record(&mut transaction, &actor, "reset-two-factor", &id.to_string(), of, json!({}))
        .await
        .map_err(database)?;
    transaction.commit().await.map_err(database)
}
