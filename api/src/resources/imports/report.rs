//! `GET …/links/import/{id}` and `GET …/links/import/{id}/refused`

use futures_util::stream;
use schemas::id::ImportId;
use service::http::ApiError;

use crate::app::App;
use crate::error::database;
use crate::store::imports;
use crate::store::imports::{RejectedRow, Report};
use crate::web::caller::Caller;
use crate::web::csv;
use crate::web::download::{Download, Export};

/// Rejected rows in a report.
const MAX_REJECTED: i64 = 200;

/// Rejected rows of one query, each at most a few kilobytes: a waiting file holds them in memory.
const BATCH: i64 = 500;

/// The header of the file of rejected rows.
const HEADER: [&str; 4] = ["row", "status", "message", "content"];

/// Returns the progress of an import.
pub(crate) async fn show(caller: Caller, id: ImportId, app: App) -> Result<Report, ApiError> {
    find(&app, &caller, id, None).await
}

/// Reads the progress of an import of the caller's workspace, optionally only of a dry run or only of an import.
pub(super) async fn find(
    app: &App,
    caller: &Caller,
    id: ImportId,
    is_dry_run: Option<bool>,
) -> Result<Report, ApiError> {
    let report = imports::report(&app.pool, caller.workspace, id, is_dry_run, MAX_REJECTED);
    report
        .await
        .map_err(database)?
        .ok_or_else(|| ApiError::not_found("There is no such import in this workspace."))
}

/// Returns all rows that were rejected so far, as CSV.
pub(crate) async fn refused(caller: Caller, id: ImportId, app: App) -> Result<Download, ApiError> {
    find(&app, &caller, id, None).await?;
    let export = Export::begin(&app, caller)?;
    let mut header = Vec::new();
    csv::write_row(&mut header, &HEADER);
    let chunks = stream::try_unfold(0, move |after| {
        let app = app.clone();
        async move {
            let rows = imports::rejected_rows(&app.pool, id, after, BATCH).await.map_err(database)?;
            let Some(next) = rows.last().map(|last| last.row) else { return Ok(None) };
            let mut chunk = Vec::new();
            for RejectedRow { row, status, message, content } in &rows {
                csv::write_row(&mut chunk, &[&row.to_string(), &status.to_string(), message, content]);
            }
            Ok(Some((chunk, next)))
        }
    });
    Download::begin(
        export,
        "text/csv; charset=utf-8",
        r#"attachment; filename="refused.csv""#,
        header,
        chunks,
    )
    .await
}
