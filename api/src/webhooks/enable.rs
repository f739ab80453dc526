//! `POST /webhooks/{id}/enable`, of the dashboard alone

use schemas::id::EndpointId;
use serde_json::json;
use service::http::ApiError;

use super::{Endpoint, not_found, store};
use crate::App;
use crate::audit;
use crate::auth::Writer;
use crate::error::database;
use crate::locks;

/// Enables a disabled endpoint for the events from now on and answers with it; an enabled one stays as it is.
pub(crate) async fn enable(Writer(caller): Writer, id: EndpointId, app: App) -> Result<Endpoint, ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    locks::share_to_write(&mut transaction, caller.account).await?;
    store::find_for_update(&mut transaction, caller.workspace, id.uuid())
        .await
        .map_err(database)?
        .ok_or_else(not_found)?;
    if store::enable(&mut transaction, id).await.map_err(database)? == Some(true) {
        let actor = audit::member(caller.user);
        audit::record(&mut transaction, &actor, "enable-endpoint", &id.to_string(), json!({}))
            .await
            .map_err(database)?;
    }
    let row = store::find_for_update(&mut transaction, caller.workspace, id.uuid())
        .await
        .map_err(database)?
        .ok_or_else(not_found)?;
    transaction.commit().await.map_err(database)?;
    Ok(row.into())
}
