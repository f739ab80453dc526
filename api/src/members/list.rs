//! `GET /app/api/members`

use serde::Serialize;
use service::http::ApiError;

use super::{Member, store};
use crate::App;
use crate::error::database;
use crate::sessions;

/// All members.
#[derive(Debug, Serialize)]
pub(crate) struct Members {
    members: Vec<Member>,
}

/// Answers with the members of the account who can sign in, the oldest first.
pub(crate) async fn list(member: sessions::Member, app: App) -> Result<Members, ApiError> {
    Ok(Members { members: store::list(&app.pool, member.account).await.map_err(database)? })
}
