//! `DELETE /webhooks/{id}`

use schemas::id::EndpointId;
use service::http::ApiError;

use super::{not_found, record, sends_to};
use crate::account::quota;
use crate::app::App;
use crate::error::database;
use crate::store::endpoints;
use crate::web::caller::Writer;

/// Deletes an endpoint. Pending deliveries are not sent.
pub(crate) async fn delete(Writer(caller): Writer, id: EndpointId, app: App) -> Result<(), ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    quota::share_to_write(&mut transaction, caller.account).await?;
    let url = endpoints::delete(&mut transaction, caller.workspace, id.uuid())
        .await
        .map_err(database)?
        .ok_or_else(not_found)?;
    record(&mut transaction, &caller, "delete-endpoint", id, sends_to(&url)).await?;
    transaction.commit().await.map_err(database)
}
