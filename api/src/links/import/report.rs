//! `GET …/links/import/{id}`

use schemas::id::ImportId;
use serde::{Deserialize, Serialize};
use service::http::ApiError;

use super::store;
use crate::App;
use crate::auth::Caller;
use crate::error::database;

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
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Refusal {
    /// From 1, the header not counted.
    pub(super) row: i64,
    pub(super) status: u16,
    pub(super) message: String,
}

/// Answers how far an import is.
pub(crate) async fn show(id: ImportId, caller: Caller, app: App) -> Result<Report, ApiError> {
    store::report(&app.pool, caller.workspace, id, None).await.map_err(database)?.ok_or_else(not_found)
}

pub(super) fn not_found() -> ApiError {
    ApiError::not_found("No such import in this workspace")
}
