//! `GET /webhooks/{id}`

use schemas::id::EndpointId;
use service::http::ApiError;

use super::{Endpoint, not_found, store};
use crate::App;
use crate::auth::Writer;
use crate::error::database;

/// Answers with an endpoint, without its secret.
pub(crate) async fn show(Writer(caller): Writer, id: EndpointId, app: App) -> Result<Endpoint, ApiError> {
    let row = store::find(&app.pool, caller.workspace, id.uuid()).await.map_err(database)?;
    row.map(Endpoint::from).ok_or_else(not_found)
}
