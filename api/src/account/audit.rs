//! `GET /app/api/audit`

use serde::{Deserialize, Serialize};
use service::http::ApiError;

use crate::account::sessions::member::Owner;
use crate::app::App;
use crate::error::database;
use crate::store::audit;
use crate::web::page::{decode_cursor, encode_cursor, parse_limit};
use crate::web::request::Query;

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    limit: Option<String>,
    cursor: Option<String>,
}

/// A page of the account's audit trail.
#[derive(Debug, Serialize)]
pub(crate) struct Entries {
    entries: Vec<audit::Entry>,
    next_cursor: Option<String>,
}

/// The place of a page's last entry.
#[derive(Debug, Serialize, Deserialize)]
enum Cursor {
    #[serde(rename = "a")]
    Audit(i64),
}

/// Returns a page of what members and operators changed in the account, the newest first.
pub(crate) async fn list(
    Owner(owner): Owner,
    Query(query): Query<Parameters>,
    app: App,
) -> Result<Entries, ApiError> {
    let limit = parse_limit(query.limit.as_deref())?;
    let before = match query.cursor.as_deref() {
        None => None,
        Some(text) => match decode_cursor(text) {
            Some(Cursor::Audit(id)) => Some(id),
            None => return Err(ApiError::invalid_field("cursor", "must be a next_cursor of this list")),
        },
    };
    // One more row than the limit shows whether there is a next page.
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let mut entries = audit::page(&app.pool, owner.account, before, most).await.map_err(database)?;
    let has_more = entries.len() > limit;
    entries.truncate(limit);
    let next_cursor =
        entries.last().filter(|_| has_more).map(|entry| encode_cursor(&Cursor::Audit(entry.id)));
    Ok(Entries { entries, next_cursor })
}
