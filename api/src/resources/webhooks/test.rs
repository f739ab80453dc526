//! `POST /webhooks/{id}/test`

use std::time::Duration;

use chrono::Utc;
use schemas::id::EndpointId;
use serde::Serialize;
use serde_json::json;
use service::http::ApiError;
use uuid::Uuid;

use super::{disabled, not_found};
use crate::account::quota;
use crate::app::App;
use crate::error::database;
use crate::store::{deliveries, endpoints};
use crate::web::caller::Writer;

/// The kind of a test event. Nobody subscribes to it.
const KIND: &str = "endpoint.test";

/// When a full queue may have room again.
const RETRY: Duration = Duration::from_secs(30);

/// What was queued.
#[derive(Debug, Serialize)]
pub(crate) struct Queued {
    delivery_id: Uuid,
}

/// Queues a test event, whatever the endpoint is subscribed to. It is delivered like any other, with retries and a
/// failure log.
///
/// # Errors
/// 400 when the endpoint is disabled: nothing is sent to it. 429 when its queue is full: events are dropped then, too.
pub(crate) async fn send_test(Writer(caller): Writer, id: EndpointId, app: App) -> Result<Queued, ApiError> {
    let delivery_id = Uuid::now_v7();
    let now = schemas::time::to_millis(Utc::now());
    let body = json!({
        "id": delivery_id,
        "event": KIND,
        "created_at": schemas::time::text(now),
        "data": { "endpoint_id": id },
    });
    let mut transaction = app.pool.begin().await.map_err(database)?;
    quota::share_to_write(&mut transaction, caller.account).await?;
    let endpoint = endpoints::find(&mut *transaction, caller.workspace, id.uuid())
        .await
        .map_err(database)?
        .ok_or_else(not_found)?;
    let body = body.to_string();
    let queued = deliveries::queue_test(&mut transaction, id.uuid(), delivery_id, KIND, body.as_bytes(), now)
        .await
        .map_err(database)?;
    if !queued {
        return Err(disabled());
    }
    if endpoint.is_full {
        let message = "The endpoint's queue is full. Try again when deliveries have left it.";
        return Err(ApiError::rate_limited(message).with_retry_after(RETRY));
    }
    transaction.commit().await.map_err(database)?;
    Ok(Queued { delivery_id })
}
