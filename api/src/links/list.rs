//! `GET /links`

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use schemas::id::LinkId;
use serde::{Deserialize, Serialize};
use service::http::ApiError;
use uuid::Uuid;

use super::counters::Counters;
use super::store::{self, LinkRow};
use crate::App;
use crate::auth::Caller;
use crate::error::database;

/// The query of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    limit: Option<String>,
    cursor: Option<String>,
}

/// A page of links, newest first.
#[derive(Debug, Serialize)]
pub(crate) struct Links {
    links: Vec<Item>,
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize)]
struct Item {
    id: LinkId,
    slug: String,
    name: String,
    destination: String,
    is_active: bool,
    total_clicks: Option<u64>,
    unique_clicks: Option<u64>,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
}

/// Answers with a page of the workspace's links and their counters.
pub(crate) async fn list(page: Page, caller: Caller, app: App) -> Result<Links, ApiError> {
    let limit = parse_limit(page.limit.as_deref())?;
    let after = page.cursor.as_deref().map(parse_cursor).transpose()?;
    // One more than asked tells whether there is a next page.
    let mut rows =
        store::page(&app.pool, caller.workspace, after, limit as i64 + 1).await.map_err(database)?;
    let next_cursor = (rows.len() > limit).then(|| {
        rows.truncate(limit);
        rows.last().map(cursor)
    });
    let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
    let counters = Counters::read(&app, caller.workspace, caller.plan, &ids).await;
    let links = rows.into_iter().map(|row| item(row, &counters)).collect();
    Ok(Links { links, next_cursor: next_cursor.flatten() })
}

fn item(row: LinkRow, counters: &Counters) -> Item {
    let (total_clicks, unique_clicks) = counters.of(row.id).unzip();
    Item {
        id: row.link_id(),
        slug: row.slug,
        name: row.name,
        destination: row.destination,
        is_active: row.is_active,
        total_clicks,
        unique_clicks,
        created_at: row.created_at,
    }
}

/// 1 to 100, 50 when not given. More is refused and never silently cut.
fn parse_limit(text: Option<&str>) -> Result<usize, ApiError> {
    match text.map(str::parse) {
        None => Ok(50),
        Some(Ok(limit @ 1..=100)) => Ok(limit),
        Some(_) => Err(ApiError::invalid_limit("limit must be a whole number from 1 to 100")),
    }
}

/// The place of a link in the order of the list: its time in microseconds, as Postgres keeps it, and its id.
fn cursor(row: &LinkRow) -> String {
    let mut place = [0; 24];
    place[..8].copy_from_slice(&row.created_at.timestamp_micros().to_be_bytes());
    place[8..].copy_from_slice(row.id.as_bytes());
    URL_SAFE_NO_PAD.encode(place)
}

fn parse_cursor(text: &str) -> Result<(DateTime<Utc>, Uuid), ApiError> {
    let mut place = [0; 24];
    let mut micros = [0; 8];
    let mut id = [0; 16];
    if text.len() == 32 && URL_SAFE_NO_PAD.decode_slice(text, &mut place) == Ok(24) {
        micros.copy_from_slice(&place[..8]);
        id.copy_from_slice(&place[8..]);
        // Postgres knows years up to 294276; what a list gave is far below.
        if let Some(time) = DateTime::from_timestamp_micros(i64::from_be_bytes(micros))
            && (1970..10_000).contains(&chrono::Datelike::year(&time))
        {
            return Ok((time, Uuid::from_bytes(id)));
        }
    }
    Err(ApiError::bad_request("cursor is not one that a list gave"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_from_1_to_100() {
        assert_eq!(parse_limit(None).unwrap(), 50);
        assert_eq!(parse_limit(Some("1")).unwrap(), 1);
        assert_eq!(parse_limit(Some("100")).unwrap(), 100);
        for bad in ["0", "101", "abc", "", "-1", "1.5", "99999999999999999999", " 5"] {
            assert!(parse_limit(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_mangled_cursor_is_refused() {
        for bad in ["", "x", &"A".repeat(31), &"_".repeat(32), &"A".repeat(10_000), &"é".repeat(16)] {
            assert!(parse_cursor(bad).is_err(), "{bad}");
        }
        assert!(parse_cursor(&"A".repeat(32)).is_ok(), "the start of 1970 is a place");
    }
}
