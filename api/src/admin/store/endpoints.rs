//! Webhook endpoints.

use schemas::id::EndpointId;
use serde_json::json;
use sqlx::PgPool;

use super::record;
use crate::webhooks;

/// Enables an endpoint for the events from now on; false when it is enabled already, none when there is none.
pub(in crate::admin) async fn enable_endpoint(
    pool: &PgPool,
    endpoint: EndpointId,
) -> sqlx::Result<Option<bool>> {
    let mut transaction = pool.begin().await?;
    let enabled = webhooks::enable_in(&mut transaction, endpoint).await?;
    if enabled == Some(true) {
        record(&mut transaction, "enable-endpoint", &endpoint.to_string(), json!({})).await?;
    }
    transaction.commit().await?;
    Ok(enabled)
}
