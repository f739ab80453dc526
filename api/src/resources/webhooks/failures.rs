//! `GET /webhooks/{id}/failures`

use chrono::{DateTime, Utc};
use schemas::id::EndpointId;
use serde::{Deserialize, Serialize};
use service::http::ApiError;
use uuid::Uuid;

use super::not_found;
use crate::app::App;
use crate::error::database;
use crate::store::deliveries::FailureRow;
use crate::store::{deliveries, endpoints};
use crate::web::caller::Writer;
use crate::web::page::{Paging, cut, decode_cursor, encode_cursor, invalid_cursor, parse_limit};
use crate::web::request::Query;

/// A page of an endpoint's failure log.
#[derive(Debug, Serialize)]
pub(crate) struct Failures {
    failures: Vec<Failure>,
    next_cursor: Option<String>,
}

/// A failed attempt.
#[derive(Debug, Serialize)]
struct Failure {
    delivery_id: Uuid,
    event: String,
    attempt: i16,
    max_attempts: u16,
    status_code: Option<i16>,
    error_class: Option<String>,
    response_body: String,
    duration_ms: i32,
    #[serde(with = "schemas::time::millis")]
    attempted_at: DateTime<Utc>,
    #[serde(with = "schemas::time::optional_millis")]
    next_attempt_at: Option<DateTime<Utc>>,
    #[serde(with = "schemas::time::optional_millis")]
    delivered_at: Option<DateTime<Utc>>,
}

impl From<FailureRow> for Failure {
    fn from(row: FailureRow) -> Self {
        Self {
            delivery_id: row.delivery_id,
            event: row.event,
            attempt: row.attempt,
            max_attempts: schemas::message::MAX_ATTEMPTS,
            status_code: row.status_code,
            error_class: row.error_class,
            response_body: row.response_body,
            duration_ms: row.duration_ms,
            attempted_at: row.attempted_at,
            next_attempt_at: row.next_attempt_at,
            delivered_at: row.delivered_at,
        }
    }
}

/// The place of a page's last failure: its time, in microseconds, and its id.
#[derive(Debug, Serialize, Deserialize)]
enum Cursor {
    #[serde(rename = "f")]
    Failures(i64, Uuid),
}

/// Returns a page of the failed attempts of the last 7 days, newest first.
pub(crate) async fn failures(
    Writer(caller): Writer,
    id: EndpointId,
    Query(paging): Query<Paging>,
    app: App,
) -> Result<Failures, ApiError> {
    let limit = parse_limit(paging.limit.as_deref())?;
    let after = paging.cursor.as_deref().map(parse_cursor).transpose()?;
    endpoints::find(&app.pool, caller.workspace, id.uuid()).await.map_err(database)?.ok_or_else(not_found)?;
    // One more row than the limit shows whether there is a next page.
    let mut rows = deliveries::page(&app.pool, id.uuid(), after, limit + 1).await.map_err(database)?;
    let next_cursor = cut(&mut rows, limit)
        .map(|row| encode_cursor(&Cursor::Failures(row.attempted_at.timestamp_micros(), row.id)));
    Ok(Failures { failures: rows.into_iter().map(Failure::from).collect(), next_cursor })
}

fn parse_cursor(text: &str) -> Result<(DateTime<Utc>, Uuid), ApiError> {
    decode_cursor(text)
        // Anyone can compute a checksum, so the time is checked: 1970 to 2199.
        .filter(|Cursor::Failures(micros, _)| (0..7_258_118_400_000_000).contains(micros))
        .and_then(|Cursor::Failures(micros, id)| Some((DateTime::from_timestamp_micros(micros)?, id)))
        .ok_or_else(|| invalid_cursor("failures"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_and_an_invalid_one_is_rejected() {
        let (at, id) = (DateTime::from_timestamp_micros(1_795_000_000_123_456).unwrap(), Uuid::now_v7());
        let cursor = encode_cursor(&Cursor::Failures(at.timestamp_micros(), id));
        assert_eq!(parse_cursor(&cursor).unwrap(), (at, id));
        assert!(parse_cursor(&cursor[1..]).is_err());
        for micros in [-1, i64::MIN, i64::MAX] {
            assert!(parse_cursor(&encode_cursor(&Cursor::Failures(micros, id))).is_err(), "{micros}");
        }
    }
}
