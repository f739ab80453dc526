//! `GET …/links/import/{id}` and `GET …/links/import/{id}/refused`

use schemas::id::ImportId;
use serde::Serialize;
use service::http::ApiError;
use tokio::sync::mpsc;

use super::super::Export;
use super::store;
use crate::auth::Caller;
use crate::error::database;
use crate::{App, csv};

/// Refused rows that a report tells.
const TOLD: i64 = 200;

/// Refused rows of one query of their file, and queries whose answers wait for a slow reader.
const BATCH: i64 = 2_000;
const AHEAD: usize = 1;

/// The first line of that file.
const HEADER: [&str; 4] = ["row", "status", "message", "content"];

/// How far an import is, and what was refused.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(super) import_id: ImportId,
    /// Rows that are done.
    pub(super) rows: i64,
    pub(super) created: i64,
    pub(super) failed: i64,
    /// The first of the refused rows.
    pub(super) results: Vec<Refusal>,
    pub(super) done: bool,
}

/// A row that was refused, as a request for its link would have been.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(super) struct Refusal {
    /// As a spreadsheet numbers it: the header is 1, and empty rows count.
    #[sqlx(rename = "line")]
    pub(super) row: i64,
    pub(super) status: i16,
    pub(super) message: String,
    /// The beginning of the row, as it was in the file.
    pub(super) content: String,
}

/// Answers how far an import is.
pub(crate) async fn show(caller: Caller, id: ImportId, app: App) -> Result<Report, ApiError> {
    find(&app, &caller, id, None).await
}

/// Finds how far an import of the caller's workspace is, and of its kind if one is given.
pub(super) async fn find(
    app: &App,
    caller: &Caller,
    id: ImportId,
    is_dry_run: Option<bool>,
) -> Result<Report, ApiError> {
    let report = store::report(&app.pool, caller.workspace, id, is_dry_run, TOLD);
    report
        .await
        .map_err(database)?
        .ok_or_else(|| ApiError::not_found("There is no such import in this workspace."))
}

/// Answers with all rows that were refused so far as CSV, written as it is read.
pub(crate) async fn refused(caller: Caller, id: ImportId, app: App) -> Result<Export, ApiError> {
    find(&app, &caller, id, None).await?;
    let (sender, chunks) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let mut bytes = Vec::new();
        csv::write_row(&mut bytes, &HEADER);
        let mut after = Some(0);
        while let Some(line) = after {
            let batch = store::refusals(&app.pool, id, line, BATCH).await;
            after = batch.as_ref().ok().and_then(|rows| rows.last()).map(|last| last.row);
            let chunk = batch.map(|rows| {
                for Refusal { row, status, message, content } in &rows {
                    csv::write_row(&mut bytes, &[&row.to_string(), &status.to_string(), message, content]);
                }
                std::mem::take(&mut bytes)
            });
            if let Err(error) = &chunk {
                tracing::warn!(error = error as &dyn std::error::Error, "A file of refused rows ended early");
            }
            // Nobody takes it any more when the reader has left.
            if sender.send(chunk).await.is_err() {
                return;
            }
        }
    });
    Ok(Export::new(chunks, "refused.csv"))
}
