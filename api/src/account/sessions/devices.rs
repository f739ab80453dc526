//! `GET` and `DELETE /app/api/sessions`, `DELETE /app/api/sessions/{id}`

use schemas::id::SessionId;
use serde::Serialize;
use service::http::ApiError;

use super::member::Member;
use crate::app::App;
use crate::error::database;
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
    let mut connection = app.pool.acquire().await.map_err(database)?;
    if sessions::end_one(&mut connection, member.user, id).await.map_err(database)? {
        return Ok(());
    }
    Err(ApiError::not_found("You have no such session."))
}

/// Ends the member's other sessions.
pub(crate) async fn end_others(member: Member, app: App) -> Result<(), ApiError> {
    let mut connection = app.pool.acquire().await.map_err(database)?;
    sessions::end_others(&mut connection, member.user, &member.digest).await.map_err(database)
}
