//! `DELETE /webhooks/{id}`

use schemas::id::EndpointId;
use service::http::ApiError;

use super::{not_found, store};
use crate::App;
use crate::auth::Writer;
use crate::error::database;

/// Removes an endpoint and the deliveries on their way to it.
pub(crate) async fn delete(id: EndpointId, Writer(caller): Writer, app: App) -> Result<(), ApiError> {
    match store::delete(&app.pool, caller.workspace, id.uuid()).await.map_err(database)? {
        true => Ok(()),
        false => Err(not_found()),
    }
}
