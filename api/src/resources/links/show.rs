//! `GET /links/{id}`

use chrono::Utc;
use schemas::id::LinkId;
use serde::Deserialize;
use service::http::ApiError;

use super::counters::{Conversions, Counters};
use crate::app::App;
use crate::resources::links::object;
use crate::resources::links::object::{FullLink, LinkObject};
use crate::store::links::LinkRow;
use crate::web::caller::Caller;
use crate::web::dates::Window;
use crate::web::request::Query;
use crate::web::revision::Tagged;

/// The query: the window of the counters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dates {
    start_date: Option<String>,
    end_date: Option<String>,
}

/// Answers with a link and its counters.
pub(crate) async fn show(
    caller: Caller,
    id: LinkId,
    Query(dates): Query<Dates>,
    app: App,
) -> Result<Tagged<FullLink>, ApiError> {
    let (start, end) = (dates.start_date.as_deref(), dates.end_date.as_deref());
    let window = Window::parse(start, end, app.plans.retention_days(caller.plan), Utc::now())?;
    let row = object::require(&app, caller.workspace, id).await?;
    Ok(Tagged(full(&row, &window, &app).await?, row.revision))
}

/// Completes a link by its counters of the caller's retention window.
pub(super) async fn full_of_retention(
    row: &LinkRow,
    caller: &Caller,
    app: &App,
) -> Result<FullLink, ApiError> {
    full(row, &Window::of_retention(app.plans.retention_days(caller.plan), Utc::now()), app).await
}

async fn full(row: &LinkRow, window: &Window, app: &App) -> Result<FullLink, ApiError> {
    let links = [row.id];
    let (counters, conversions) = tokio::join!(
        Counters::read(app, row.workspace_id, (*window).into(), &links),
        Conversions::read(app, row.workspace_id, (*window).into(), &links),
    );
    Ok(FullLink::new(LinkObject::new(row, app), &counters, conversions.of(row.id, &counters)))
}
