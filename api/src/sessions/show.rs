//! `GET /app/api/session`

use service::http::ApiError;

use super::Member;
use super::store::{self, Session};
use crate::App;
use crate::error::database;

/// Answers with who is signed in, the account and its workspaces.
pub(crate) async fn show(member: Member, app: App) -> Result<Session, ApiError> {
    store::session(&app, member.user).await.map_err(database)
}
