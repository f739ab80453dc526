//! `POST /webhooks/{id}/redeliver`

use chrono::Utc;
use schemas::id::EndpointId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use service::http::ApiError;
use uuid::Uuid;

use super::{disabled, not_found, record};
use crate::account::quota;
use crate::app::App;
use crate::error::database;
use crate::store::deliveries::Chosen;
use crate::store::{deliveries, endpoints};
use crate::web::caller::Writer;
use crate::web::dates::Window;
use crate::web::request::Json;

/// Most deliveries of one request.
const MAX_IDS: usize = 1_000;

/// How long a failed delivery can be sent again.
const KEPT_DAYS: u64 = 7;

/// The body: the deliveries by their ids, or by when they failed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Selection {
    delivery_ids: Option<Vec<String>>,
    start_date: Option<String>,
    end_date: Option<String>,
}

/// What was queued.
#[derive(Debug, Serialize)]
pub(crate) struct Redelivered {
    queued: i64,
}

/// Queues failed deliveries of the last 7 days again, under their own ids and with their own bytes.
///
/// Deliveries given by id are sent again even if they arrived later; those of a time range only if they did not. Other
/// deliveries, and those already queued, are ignored and not counted.
///
/// # Errors
/// 400 when the endpoint is disabled, or the selection is invalid.
pub(crate) async fn redeliver(
    Writer(caller): Writer,
    id: EndpointId,
    Json(selection): Json<Selection>,
    app: App,
) -> Result<Redelivered, ApiError> {
    let chosen = selection.parse()?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    quota::share_to_write(&mut transaction, caller.account).await?;
    // Not locked: the dispatcher locks deliveries before their endpoint, and this would deadlock. An endpoint that is
    // disabled meanwhile gets nothing, and the count is 0.
    let endpoint = endpoints::find(&mut *transaction, caller.workspace, id.uuid())
        .await
        .map_err(database)?
        .ok_or_else(not_found)?;
    if endpoint.status != "enabled" {
        return Err(disabled());
    }
    let queued = deliveries::redeliver(&mut transaction, id.uuid(), &chosen).await.map_err(database)?;
    record(&mut transaction, &caller, "redeliver", id, json!({ "queued": queued })).await?;
    transaction.commit().await.map_err(database)?;
    Ok(Redelivered { queued })
}

impl Selection {
    fn parse(self) -> Result<Chosen, ApiError> {
        let by_time = self.start_date.is_some() || self.end_date.is_some();
        match self.delivery_ids {
            Some(_) if by_time => Err(ApiError::invalid_field(
                "delivery_ids",
                "cannot be given together with start_date or end_date",
            )),
            Some(ids) => Ok(Chosen::Ids(parse_ids(&ids)?)),
            None if by_time => {
                let (start, end) = (self.start_date.as_deref(), self.end_date.as_deref());
                let now = Utc::now();
                let window = Window::parse(start, end, KEPT_DAYS, now)?;
                Ok(Chosen::FailedIn(window.start, window.end))
            }
            None => Err(ApiError::invalid_field("delivery_ids", "must be given, or start_date or end_date")),
        }
    }
}

fn parse_ids(texts: &[String]) -> Result<Vec<Uuid>, ApiError> {
    if texts.is_empty() || texts.len() > MAX_IDS {
        return Err(ApiError::invalid_field("delivery_ids", format!("must have 1 to {MAX_IDS} entries")));
    }
    let parse = |text: &String| {
        // Only the form in which ids are shown.
        Uuid::try_parse(text).ok().filter(|id| id.hyphenated().to_string().eq_ignore_ascii_case(text))
    };
    texts.iter().map(parse).collect::<Option<_>>().ok_or_else(|| {
        ApiError::invalid_field(
            "delivery_ids",
            "must be ids of deliveries, as in the header X-Service-Delivery",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: serde_json::Value) -> Result<Chosen, ApiError> {
        serde_json::from_value::<Selection>(body).unwrap().parse()
    }

    #[test]
    fn deliveries_are_selected_by_id_or_by_time() {
        let id = "9cfa3820-0d1e-54c3-bc2d-242b3ef5ef15";
        assert!(matches!(parse(json!({"delivery_ids": [id]})), Ok(Chosen::Ids(ids)) if ids.len() == 1));
        let start = "2026-11-21";
        assert!(matches!(parse(json!({"start_date": start})), Ok(Chosen::FailedIn(_, None))));
        assert!(matches!(parse(json!({"end_date": start})), Ok(Chosen::FailedIn(_, Some(_)))));
        for bad in [
            json!({}),
            json!({"delivery_ids": null}),
            json!({"delivery_ids": []}),
            json!({"delivery_ids": vec![id; MAX_IDS + 1]}),
            json!({"delivery_ids": [id], "start_date": start}),
            json!({"delivery_ids": [""]}),
            json!({"delivery_ids": [id, format!("{{{id}}}")]}),
            json!({"delivery_ids": [format!("urn:uuid:{id}")]}),
            json!({"delivery_ids": [id.replace('-', "")]}),
            json!({"start_date": "yesterday"}),
            json!({"start_date": "2026-11-22", "end_date": "2026-11-21"}),
        ] {
            assert!(parse(bad.clone()).is_err(), "{bad}");
        }
    }
}
