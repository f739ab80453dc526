//! `POST /webhooks/{id}/rotate-secret`

use schemas::id::EndpointId;
use service::http::ApiError;

use super::{WithSecret, not_found, record, secret, sends_to};
use crate::account::quota;
use crate::app::App;
use crate::error::database;
use crate::store::endpoints;
use crate::web::caller::Writer;

/// Draws a new secret and answers with it, for the only time.
///
/// The secret so far signs beside the new one for 24 hours, so that receivers can change over without a gap. Only one
/// is kept: a second rotation within that time ends the first secret at once.
pub(crate) async fn rotate_secret(
    Writer(caller): Writer,
    id: EndpointId,
    app: App,
) -> Result<WithSecret, ApiError> {
    let (secret, sealed) = secret::draw(&app, id.uuid())?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    quota::share_to_write(&mut transaction, caller.account).await?;
    let row = endpoints::rotate(&mut transaction, caller.workspace, id.uuid(), &sealed)
        .await
        .map_err(database)?
        .ok_or_else(not_found)?;
    record(&mut transaction, &caller, "rotate-secret", id, sends_to(&row.url)).await?;
    transaction.commit().await.map_err(database)?;
    Ok(WithSecret { endpoint: row.into(), secret })
}
