//! `DELETE /links/{id}`

use chrono::Utc;
use schemas::id::LinkId;
use schemas::message::LinkEventKind;
use serde_json::json;
use service::http::ApiError;

use crate::account::quota;
use crate::account::quota::begin_count;
use crate::app::App;
use crate::error::{database, retry_deadlocks};
use crate::resources::links::object;
use crate::store::links;
use crate::store::links::EventPayload;
use crate::web::caller::{Caller, Editor};
use crate::web::revision::IfMatch;

/// Deletes a link, locked or not. Its slug becomes free; its clicks do not pass to the slug's next link.
///
/// The oldest locked link of the account is unlocked in its place.
pub(crate) async fn delete(
    Editor(caller): Editor,
    id: LinkId,
    unchanged: IfMatch,
    app: App,
) -> Result<(), ApiError> {
    retry_deadlocks(|| delete_once(id, &caller, &unchanged, &app)).await
}

async fn delete_once(id: LinkId, caller: &Caller, unchanged: &IfMatch, app: &App) -> Result<(), ApiError> {
    let (mut transaction, plan) = begin_count(app, caller).await?;
    let row = links::find_for_update(&mut transaction, caller.workspace, id.uuid())
        .await
        .map_err(database)?
        .ok_or_else(object::not_found)?;
    unchanged.check(row.revision)?;
    let data = json!({ "id": id, "slug": row.slug, "name": row.name, "destination": row.destination });
    let told = EventPayload { kind: LinkEventKind::Deleted, data };
    let now = schemas::time::to_millis(Utc::now()).max(row.created_at);
    links::delete(&mut transaction, &row, now, told).await.map_err(database)?;
    if app.plans.link_cap(plan).is_some() {
        quota::settle_after_delete(&mut transaction, app, caller.account, plan).await.map_err(database)?;
    }
    transaction.commit().await.map_err(database)
}
