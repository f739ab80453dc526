//! `GET …/links/export`, only for members

use futures_util::stream;
use service::http::ApiError;

use crate::app::App;
use crate::error::database;
use crate::resources::imports::tags::join as join_tags;
use crate::store::links;
use crate::store::links::{Filter, LinkRow, Place};
use crate::web::caller::Caller;
use crate::web::csv;
use crate::web::download::{Download, Export};

/// Links of one query, each at most a few kilobytes: a waiting export holds them in memory.
const BATCH: usize = 250;

/// The header line. An import recognizes an export by it.
pub(crate) const HEADER: [&str; 13] = [
    "name",
    "destination",
    "slug",
    "tags",
    "external_id",
    "is_active",
    "expires_at",
    "redirect_status",
    "forward_query",
    "append_click_id",
    "id",
    "short_url",
    "created_at",
];

/// Returns every link of the workspace as CSV, the oldest first.
pub(crate) async fn export(caller: Caller, app: App) -> Result<Download, ApiError> {
    let export = Export::begin(&app, caller)?;
    let mut header = Vec::new();
    csv::write_row(&mut header, &HEADER);
    let workspace = caller.workspace;
    let chunks = stream::try_unfold(Some(None), move |after| {
        let app = app.clone();
        async move {
            let Some(after) = after else { return Ok(None) };
            let filter = Filter { workspace, words: vec![], is_active: None, is_locked: None, tag: None };
            let rows =
                links::page(&app.pool, &filter, Place::Oldest(after), BATCH).await.map_err(database)?;
            let last = rows.last().filter(|_| rows.len() == BATCH);
            let next = last.map(|row| Some((row.created_at, row.id)));
            let mut chunk = Vec::new();
            rows.iter().for_each(|row| csv::write_row(&mut chunk, &cells(row, app.short_url(&row.slug))));
            Ok(Some((chunk, next)))
        }
    });
    Download::begin(export, "text/csv; charset=utf-8", r#"attachment; filename="links.csv""#, header, chunks)
        .await
}

/// Returns the cells of a link, in the order of [`HEADER`].
pub(crate) fn cells(row: &LinkRow, short_url: String) -> [String; HEADER.len()] {
    [
        row.name.clone(),
        row.destination.clone(),
        row.slug.clone(),
        join_tags(&row.tags),
        row.external_id.clone().unwrap_or_default(),
        row.is_active.to_string(),
        row.expires_at.map(schemas::time::text).unwrap_or_default(),
        row.redirect_status.to_string(),
        row.forward_query.clone(),
        row.append_click_id.to_string(),
        row.link_id().to_string(),
        short_url,
        schemas::time::text(row.created_at),
    ]
}
