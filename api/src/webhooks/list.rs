//! `GET /webhooks`

use serde::Serialize;
use service::http::ApiError;

use super::{Endpoint, store};
use crate::App;
use crate::auth::Caller;
use crate::error::database;

/// The endpoints of a workspace, newest first.
#[derive(Debug, Serialize)]
pub(crate) struct Endpoints {
    webhooks: Vec<Endpoint>,
    next_cursor: Option<String>,
}

/// Answers with the workspace's endpoints, at most 100.
pub(crate) async fn list(caller: Caller, app: App) -> Result<Endpoints, ApiError> {
    let rows = store::newest(&app.pool, caller.workspace, 100).await.map_err(database)?;
    Ok(Endpoints { webhooks: rows.into_iter().map(Endpoint::from).collect(), next_cursor: None })
}
