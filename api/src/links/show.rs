//! `GET /links/{id}`

use schemas::id::LinkId;
use service::http::ApiError;

use super::counters::Counters;
use super::store::LinkRow;
use super::{FullLink, LinkObject};
use crate::App;
use crate::auth::Caller;
use crate::conversions;
use crate::error::database;

/// Answers with a link and its counters.
pub(crate) async fn show(id: LinkId, caller: Caller, app: App) -> Result<FullLink, ApiError> {
    let row = super::require(&app, caller.workspace, id).await?;
    full(&row, &caller, &app).await
}

/// Completes a link by its counters of the caller's retention window.
pub(super) async fn full(row: &LinkRow, caller: &Caller, app: &App) -> Result<FullLink, ApiError> {
    let links = [row.id];
    let (counters, conversions) = tokio::join!(
        Counters::read(app, caller.workspace, caller.plan, &links),
        conversions::count_of_link(&app.pool, row.id),
    );
    Ok(FullLink::new(LinkObject::new(row, app), &counters, conversions.map_err(database)?))
}
