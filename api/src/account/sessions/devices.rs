//! `GET` and `DELETE /app/api/sessions`, `DELETE /app/api/sessions/{id}`

use schemas::id::SessionId;
use serde::Serialize;
use service::http::ApiError;

use super::member::Member;
use crate::app::App;
use crate::error::database;
use crate::store::audit;
use crate::store::sessions::{self, Listed};

/// The browsers in which a member is signed in.
#[derive(Debug, Serialize)]
pub(crate) struct Sessions {
    sessions: Vec<Listed>,
}

/// Returns the member's own sessions, the last seen first.
pub(crate) async fn list(member: Member, app: App) -> Result<Sessions, ApiError> {
    let sessions = sessions::list(&app.pool, member.user, &member.digest).await.map_err(database)?;
    Ok(Sessions { sessions })
}

/// Ends one of the member's own sessions.
pub(crate) async fn end(member: Member, id: SessionId, app: App) -> Result<(), ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    if !sessions::end_one(&mut transaction, member.user, id).await.map_err(database)? {
        return Err(ApiError::not_found("You have no such session."));
    }
    audit::record_own(&mut transaction, member.user, "end-session").await.map_err(database)?;
    transaction.commit().await.map_err(database)
}

/// Ends the member's other sessions.
pub(crate) async fn end_others(member: Member, app: App) -> Result<(), ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    let ended =
        sessions::end_others(&mut transaction, member.user, &member.digest).await.map_err(database)?;
    if ended > 0 {
        audit::record_own(&mut transaction, member.user, "end-other-sessions").await.map_err(database)?;
    }
    transaction.commit().await.map_err(database)
}
