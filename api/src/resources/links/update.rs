//! `PATCH /links/{id}`

use chrono::Utc;
use schemas::id::LinkId;
use schemas::message::LinkEventKind;
use service::http::ApiError;
use sqlx::PgConnection;

use super::show;
use crate::account::quota;
use crate::app::App;
use crate::error::{database, retry_deadlocks, violates};
use crate::resources::links::fields::{Checked, Fields, trimmed};
use crate::resources::links::object;
use crate::resources::links::object::{FullLink, LinkObject, external_id_taken, slug_taken};
use crate::store::links::{EventPayload, LinkRow};
use crate::store::{former_slugs, links};
use crate::web::caller::{Caller, Editor};
use crate::web::request::Json;
use crate::web::revision::{IfMatch, Tagged};

/// Changes the given fields and returns the link. Without a difference no message is sent.
pub(crate) async fn update(
    Editor(caller): Editor,
    id: LinkId,
    unchanged: IfMatch,
    Json(fields): Json<Fields>,
    app: App,
) -> Result<Tagged<FullLink>, ApiError> {
    let checked = fields.check(&app.destinations)?;
    // Two requests that swap external ids deadlock.
    let row = retry_deadlocks(|| update_once(id, &caller, &unchanged, &checked, &app)).await?;
    Ok(Tagged(show::full_of_retention(&row, &caller, &app).await?, row.revision))
}

async fn update_once(
    id: LinkId,
    caller: &Caller,
    unchanged: &IfMatch,
    checked: &Checked,
    app: &App,
) -> Result<LinkRow, ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    quota::share_to_edit(&mut transaction, caller).await?;
    if let Some(slug) = &checked.slug {
        let former = links::find(&mut *transaction, caller.workspace, id.uuid()).await.map_err(database)?;
        let former = former.ok_or_else(object::not_found)?;
        // Names are locked before the row, as in bulk writes. If the link gets another slug meanwhile, two requests may
        // still deadlock, and one is tried again.
        if former.slug != *slug {
            links::queue_for_slugs(&mut transaction, [&former.slug, slug]).await.map_err(database)?;
        }
    }
    let mut row = links::find_for_update(&mut transaction, caller.workspace, id.uuid())
        .await
        .map_err(database)?
        .ok_or_else(object::not_found)?;
    unchanged.check(row.revision)?;
    change(&mut transaction, &mut row, checked, app).await?;
    transaction.commit().await.map_err(database)?;
    Ok(row)
}

/// Changes a locked link, and queues its messages if something differs.
pub(super) async fn change(
    transaction: &mut PgConnection,
    row: &mut LinkRow,
    checked: &Checked,
    app: &App,
) -> Result<(), ApiError> {
    if row.is_blocked {
        return Err(ApiError::link_blocked(
            "The operator of this service has disabled the link. It can be deleted but not edited.",
        ));
    }
    if row.is_locked {
        return Err(ApiError::link_locked(
            "The link is locked because it is over the plan's limit. It can be deleted but not edited.",
        ));
    }
    let former_slug = row.slug.clone();
    let changed = apply(checked.clone(), row);
    if changed.is_empty() {
        return Ok(());
    }
    checked.faults_if_changed.of(&changed).into_result()?;
    if row.slug != former_slug {
        let is_held = former_slugs::is_held(&mut *transaction, row.workspace_id, &row.slug);
        if is_held.await.map_err(database)? {
            return Err(slug_taken(&row.slug));
        }
        former_slugs::hold(transaction, &[&former_slug], Some(row.workspace_id)).await.map_err(database)?;
    }
    row.revision += 1;
    // Never before the creation, also when the clock was set back.
    row.updated_at = schemas::time::to_millis(Utc::now()).max(row.created_at);
    let data = LinkObject::new(row, app).event_data(Some(&changed));
    match links::update(transaction, row, EventPayload { kind: LinkEventKind::Updated, data }).await {
        Ok(()) => Ok(()),
        Err(error) if violates(&error, "links_slug") => Err(slug_taken(&row.slug)),
        Err(error) if violates(&error, "links_external_id") => Err(external_id_taken()),
        Err(error) => Err(database(error)),
    }
}

/// Applies the given fields to the row. Returns the names of those that differ.
fn apply(checked: Checked, row: &mut LinkRow) -> Vec<&'static str> {
    let mut changed = Vec::new();
    let mut note = |field, differs: bool| {
        if differs {
            changed.push(field);
        }
    };
    note("name", replace(&mut row.name, checked.name));
    note("destination", replace(&mut row.destination, checked.destination));
    note("slug", replace(&mut row.slug, checked.slug));
    note("is_active", replace(&mut row.is_active, checked.is_active));
    note("external_id", replace(&mut row.external_id, checked.external_id));
    let tags = checked.tags.filter(|tags| *tags != row.tags).map(trimmed);
    note("tags", replace(&mut row.tags, tags));
    note("redirect_status", replace(&mut row.redirect_status, checked.redirect_status));
    let forward_query = checked.forward_query.map(|mode| mode.as_str().to_owned());
    note("forward_query", replace(&mut row.forward_query, forward_query));
    note("append_click_id", replace(&mut row.append_click_id, checked.append_click_id));
    note("expires_at", replace(&mut row.expires_at, checked.expires_at));
    changed
}

/// Applies a value. Returns whether it differs.
fn replace<T: PartialEq>(current: &mut T, given: Option<T>) -> bool {
    match given {
        Some(given) if given != *current => {
            *current = given;
            true
        }
        _ => false,
    }
}
