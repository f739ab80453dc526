//! `POST /webhooks/{id}/enable`, of the dashboard alone

use schemas::id::EndpointId;
use service::http::ApiError;

use super::{Endpoint, not_found, record, sends_to};
use crate::account::quota;
use crate::app::App;
use crate::error::database;
use crate::store::endpoints;
use crate::web::caller::Writer;

/// Enables a disabled endpoint for the events from now on and answers with it; an enabled one stays as it is.
pub(crate) async fn enable(Writer(caller): Writer, id: EndpointId, app: App) -> Result<Endpoint, ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    quota::share_to_write(&mut transaction, caller.account).await?;
    endpoints::find_for_update(&mut transaction, caller.workspace, id.uuid())
        .await
        .map_err(database)?
        .ok_or_else(not_found)?;
    let is_changed = endpoints::enable(&mut transaction, id).await.map_err(database)? == Some(true);
    let row = endpoints::find_for_update(&mut transaction, caller.workspace, id.uuid())
        .await
        .map_err(database)?
        .ok_or_else(not_found)?;
    if is_changed {
        record(&mut transaction, &caller, "enable-endpoint", id, sends_to(&row.url)).await?;
    }
    transaction.commit().await.map_err(database)?;
    Ok(row.into())
}
