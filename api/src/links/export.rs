//! `GET …/links/export`, of the dashboard alone

use futures_util::stream;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use service::http::ApiError;
use tokio::sync::mpsc;
use warp::Reply as _;
use warp::reply::Response;

use super::import::join_tags;
use super::store::{self, Filter, LinkRow, Place};
use crate::App;
use crate::auth::Caller;
use crate::csv;
use crate::error::database;
use crate::web::operation::Answer;

/// Links of one query.
const BATCH: usize = 1_000;

/// Batches that wait for a slow reader.
const AHEAD: usize = 1;

/// The first line. An import knows a file by it, and reads the columns that a link can be made of.
pub(super) const HEADER: [&str; 13] = [
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

/// A file of CSV on its way.
pub(crate) struct Export {
    chunks: mpsc::Receiver<sqlx::Result<Vec<u8>>>,
    /// What it is called.
    name: &'static str,
}

impl Export {
    /// A file that comes in pieces; an error ends it early.
    pub(super) const fn new(chunks: mpsc::Receiver<sqlx::Result<Vec<u8>>>, name: &'static str) -> Self {
        Self { chunks, name }
    }
}

impl Answer for Export {
    fn respond(self, _: StatusCode) -> Response {
        let Self { mut chunks, name } = self;
        let mut response =
            warp::reply::stream(stream::poll_fn(move |context| chunks.poll_recv(context))).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
        // A name of ours is always a header value.
        if let Ok(disposition) = HeaderValue::try_from(format!(r#"attachment; filename="{name}""#)) {
            headers.insert(CONTENT_DISPOSITION, disposition);
        }
        response
    }
}

/// Answers with every link of the workspace as CSV, the oldest first, written as it is read.
///
/// What goes wrong after the first links ends the answer before its end, and the coding of the transfer tells so.
pub(crate) async fn export(caller: Caller, app: App) -> Result<Export, ApiError> {
    let filter =
        Filter { workspace: caller.workspace, words: vec![], is_active: None, is_locked: None, tag: None };
    let first = store::page(&app.pool, &filter, Place::Oldest(None), BATCH).await.map_err(database)?;
    let (sender, chunks) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let mut bytes = Vec::new();
        csv::write_row(&mut bytes, &HEADER);
        let mut batch = Ok(first);
        loop {
            let last = batch.as_ref().ok().filter(|rows| rows.len() == BATCH).and_then(|rows| rows.last());
            let after = last.map(|row| (row.created_at, row.id));
            let chunk = batch.map(|rows| {
                rows.iter().for_each(|row| write(&mut bytes, row, &app));
                std::mem::take(&mut bytes)
            });
            if let Err(error) = &chunk {
                tracing::warn!(error = error as &dyn std::error::Error, "An export of links ended early");
            }
            // Nobody takes it any more when the reader has left.
            if sender.send(chunk).await.is_err() || after.is_none() {
                return;
            }
            batch = store::page(&app.pool, &filter, Place::Oldest(after), BATCH).await;
        }
    });
    Ok(Export::new(chunks, "links.csv"))
}

fn write(bytes: &mut Vec<u8>, row: &LinkRow, app: &App) {
    csv::write_row(bytes, &cells(row, app.short_url(&row.slug)));
}

/// The cells of a link, as [`HEADER`] names them.
pub(super) fn cells(row: &LinkRow, short_url: String) -> [String; HEADER.len()] {
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
