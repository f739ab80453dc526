//! `DELETE /webhooks/{id}`

use schemas::id::EndpointId;
use serde_json::json;
use service::http::ApiError;

use super::not_found;
use crate::account::quota;
use crate::app::App;
use crate::error::database;
use crate::store::audit::Of;
use crate::store::{audit, endpoints};
use crate::web::caller::Writer;

/// Deletes an endpoint. Pending deliveries are not sent.
pub(crate) async fn delete(Writer(caller): Writer, id: EndpointId, app: App) -> Result<(), ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    quota::share_to_write(&mut transaction, caller.account).await?;
    if !endpoints::delete(&mut transaction, caller.workspace, id.uuid()).await.map_err(database)? {
        return Err(not_found());
    }
    audit::record(
        &mut transaction,
        &caller.actor(),
        "delete-endpoint",
        &id.to_string(),
        Of::Workspace(caller.workspace),
        json!({}),
    )
    .await
    .map_err(database)?;
    transaction.commit().await.map_err(database)
}
