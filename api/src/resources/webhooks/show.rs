//! `GET /webhooks/{id}`

use schemas::id::EndpointId;
use service::http::ApiError;

use super::{Endpoint, not_found};
use crate::app::App;
use crate::error::database;
use crate::store::endpoints;
use crate::web::caller::Writer;

/// Returns an endpoint, without its secret.
pub(crate) async fn show(Writer(caller): Writer, id: EndpointId, app: App) -> Result<Endpoint, ApiError> {
    let row = endpoints::find(&app.pool, caller.workspace, id.uuid()).await.map_err(database)?;
    row.map(Endpoint::from).ok_or_else(not_found)
}
