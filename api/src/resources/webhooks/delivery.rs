//! `GET /webhooks/{id}/deliveries/{delivery_id}`

use chrono::{DateTime, Utc};
use schemas::id::EndpointId;
use serde::Serialize;
use service::http::ApiError;
use uuid::Uuid;

use super::not_found;
use crate::app::App;
use crate::error::database;
use crate::store::deliveries::DeliveryRow;
use crate::store::{deliveries, endpoints};
use crate::web::caller::Writer;

/// The state of a delivery.
#[derive(Debug, Serialize)]
pub(crate) struct Delivery {
    delivery_id: Uuid,
    status: Status,
    /// Attempts so far; reset by a redelivery.
    attempts: i16,
    /// The status of the last failed attempt.
    status_code: Option<i16>,
    error_class: Option<String>,
    #[serde(with = "schemas::time::optional_millis")]
    next_attempt_at: Option<DateTime<Utc>>,
    #[serde(with = "schemas::time::optional_millis")]
    delivered_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Pending,
    Delivered,
    Failed,
}

impl From<DeliveryRow> for Delivery {
    fn from(row: DeliveryRow) -> Self {
        let status = match (row.next_attempt_at, row.delivered_at) {
            (Some(_), _) => Status::Pending,
            // A delivery that arrived can be sent again, and fail.
            (None, Some(delivered_at)) if row.failed_at.is_none_or(|at| at < delivered_at) => {
                Status::Delivered
            }
            (None, _) => Status::Failed,
        };
        Self {
            delivery_id: row.delivery_id,
            status,
            attempts: row.attempts,
            status_code: row.status_code,
            error_class: row.error_class,
            next_attempt_at: row.next_attempt_at,
            delivered_at: row.delivered_at,
        }
    }
}

/// Returns the state of a delivery that is pending or failed within 7 days, or of a test of the last 24 hours.
pub(crate) async fn delivery(
    Writer(caller): Writer,
    id: EndpointId,
    delivery: Uuid,
    app: App,
) -> Result<Delivery, ApiError> {
    endpoints::find(&app.pool, caller.workspace, id.uuid()).await.map_err(database)?.ok_or_else(not_found)?;
    let row = deliveries::delivery(&app.pool, id.uuid(), delivery).await.map_err(database)?;
    row.map(Delivery::from).ok_or_else(|| {
        ApiError::not_found("There is no such delivery to this endpoint. Successful deliveries are not kept.")
    })
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn the_newest_outcome_of_a_delivery_is_its_status() {
        let now = Utc::now();
        let status = |next: Option<i64>, delivered: Option<i64>, failed: Option<i64>| {
            let at = |minutes: Option<i64>| minutes.map(|minutes| now + TimeDelta::minutes(minutes));
            Delivery::from(DeliveryRow {
                delivery_id: Uuid::nil(),
                attempts: 1,
                status_code: None,
                error_class: None,
                next_attempt_at: at(next),
                delivered_at: at(delivered),
                failed_at: at(failed),
            })
            .status
        };
        assert_eq!(status(Some(9), None, None), Status::Pending);
        assert_eq!(status(Some(9), Some(2), Some(1)), Status::Pending, "sent again");
        assert_eq!(status(None, Some(1), None), Status::Delivered, "a test");
        assert_eq!(status(None, Some(2), Some(1)), Status::Delivered, "at a later attempt");
        assert_eq!(status(None, Some(1), Some(2)), Status::Failed, "when it was sent again");
        assert_eq!(status(None, None, Some(1)), Status::Failed);
    }
}
