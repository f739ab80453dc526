//! `GET /app/api/members`

use serde::Serialize;
use service::http::ApiError;

use crate::account::sessions::member;
use crate::app::App;
use crate::error::database;
use crate::store::members::{self, Member};
use crate::store::role::Role;

/// All members.
#[derive(Debug, Serialize)]
pub(crate) struct Members {
    members: Vec<Member>,
}

/// Answers with the members of the account who can sign in, the oldest first.
pub(crate) async fn list(member: member::Member, app: App) -> Result<Members, ApiError> {
    let mut members = members::list(&app.pool, member.account).await.map_err(database)?;
    if !matches!(member.role, Role::Owner) {
        members.iter_mut().for_each(|member| member.two_factor = None);
    }
    Ok(Members { members })
}
