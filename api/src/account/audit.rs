//! `GET /app/api/audit`

use serde::{Deserialize, Serialize};
use service::http::ApiError;

use crate::account::sessions::member::Owner;
use crate::app::App;
use crate::error::database;
use crate::store::audit;
use crate::web::page::{Paging, cut, encode_cursor};
use crate::web::request::Query;

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
    Query(paging): Query<Paging>,
    app: App,
) -> Result<Entries, ApiError> {
    let (limit, after) = paging.parse("entries")?;
    let before = after.map(|Cursor::Audit(id)| id);
    // One more row than the limit shows whether there is a next page.
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let mut entries = audit::page(&app.pool, owner.account, before, most).await.map_err(database)?;
    let next_cursor = cut(&mut entries, limit).map(|entry| encode_cursor(&Cursor::Audit(entry.id)));
    Ok(Entries { entries, next_cursor })
}
