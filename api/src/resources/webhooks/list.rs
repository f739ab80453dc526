//! `GET /webhooks`

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use service::http::ApiError;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::Endpoint;
use crate::app::App;
use crate::error::database;
use crate::store::endpoints;
use crate::web::caller::Writer;
use crate::web::page::parse_limit;
use crate::web::request::Query;

/// The query of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    limit: Option<String>,
    cursor: Option<String>,
}

/// A page of a workspace's endpoints, newest first.
#[derive(Debug, Serialize)]
pub(crate) struct Endpoints {
    webhooks: Vec<Endpoint>,
    next_cursor: Option<String>,
}

/// Answers with a page of the workspace's endpoints.
pub(crate) async fn list(
    Writer(caller): Writer,
    Query(page): Query<Page>,
    app: App,
) -> Result<Endpoints, ApiError> {
    let limit = parse_limit(page.limit.as_deref())?;
    let before = page.cursor.as_deref().map(parse_cursor).transpose()?;
    // One more than asked tells whether there is a next page.
    let mut rows =
        endpoints::page(&app.pool, caller.workspace, before, limit as i64 + 1).await.map_err(database)?;
    let next_cursor = (rows.len() > limit).then(|| {
        rows.truncate(limit);
        rows.last().map(|row| cursor(row.id))
    });
    let webhooks = rows.into_iter().map(Endpoint::from).collect();
    Ok(Endpoints { webhooks, next_cursor: next_cursor.flatten() })
}

/// The place of an endpoint in the order of the list: its id, which begins with its time, and a checksum, so that
/// one that a copy has mangled is refused instead of leading somewhere.
fn cursor(id: Uuid) -> String {
    let mut place = id.as_bytes().to_vec();
    place.extend(checksum(id));
    URL_SAFE_NO_PAD.encode(place)
}

fn parse_cursor(text: &str) -> Result<Uuid, ApiError> {
    let mut place = [0; 20];
    let mut id = [0; 16];
    if text.len() == 27 && URL_SAFE_NO_PAD.decode_slice(text, &mut place) == Ok(20) {
        id.copy_from_slice(&place[..16]);
        let id = Uuid::from_bytes(id);
        if place[16..] == checksum(id) {
            return Ok(id);
        }
    }
    Err(ApiError::invalid_field("cursor", "is not a cursor of a list of webhook endpoints"))
}

fn checksum(id: Uuid) -> [u8; 4] {
    let digest = Sha256::digest(id.as_bytes());
    [digest[0], digest[1], digest[2], digest[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips() {
        let id = Uuid::now_v7();
        assert_eq!(parse_cursor(&cursor(id)).unwrap(), id);
    }

    #[test]
    fn a_damaged_cursor_is_rejected() {
        let good = cursor(Uuid::now_v7());
        for place in 0..good.len() {
            let mut mangled = good.clone();
            mangled.replace_range(place..=place, if &good[place..=place] == "x" { "y" } else { "x" });
            assert!(parse_cursor(&mangled).is_err(), "{place}");
        }
        for bad in ["", "x", &good[1..], &format!("{good}A"), &"A".repeat(10_000), &"é".repeat(13)] {
            assert!(parse_cursor(bad).is_err(), "{bad}");
        }
    }
}
