//! `PATCH /webhooks/{id}`

use chrono::Utc;
use schemas::id::EndpointId;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use service::http::ApiError;

use super::fields::Given;
use super::{Endpoint, not_found, record, sends_to};
use crate::account::quota;
use crate::app::App;
use crate::error::database;
use crate::store::endpoints;
use crate::store::endpoints::EndpointRow;
use crate::web::caller::Writer;
use crate::web::faults::Faults;
use crate::web::request::Json;

/// The body: the fields to change. None of them can be null.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Changes {
    #[serde(deserialize_with = "given")]
    url: Option<String>,
    #[serde(deserialize_with = "given")]
    description: Option<String>,
    #[serde(deserialize_with = "given")]
    events: Option<Vec<String>>,
    #[serde(deserialize_with = "given")]
    click_classes: Option<Vec<String>>,
    /// Accepted only to be rejected with a reason.
    #[serde(deserialize_with = "given")]
    status: Option<IgnoredAny>,
}

fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Changes the given fields and returns the endpoint. Without a difference nothing is written.
pub(crate) async fn update(
    Writer(caller): Writer,
    id: EndpointId,
    Json(changes): Json<Changes>,
    app: App,
) -> Result<Endpoint, ApiError> {
    let mut faults = Faults::default();
    let given = Given {
        url: changes.url.as_deref(),
        description: changes.description.as_deref(),
        events: changes.events.as_deref(),
        click_classes: changes.click_classes.as_deref(),
    };
    given.check(&app.webhook_rules, &mut faults);
    if changes.status.is_some() {
        faults.add("status", "cannot be set: enable a disabled endpoint in the dashboard");
    }
    // A stored URL or description may be older than a rule, and counts only if it changes.
    faults.of(&["events", "click_classes", "status"]).into_result()?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    quota::share_to_write(&mut transaction, caller.account).await?;
    let mut row = endpoints::find_for_update(&mut transaction, caller.workspace, id.uuid())
        .await
        .map_err(database)?
        .ok_or_else(not_found)?;
    let changed = apply(changes, &mut row);
    faults.of(&changed).into_result()?;
    if !changed.is_empty() {
        // Never before the creation, also when the clock was set back.
        row.updated_at = schemas::time::to_millis(Utc::now()).max(row.created_at);
        endpoints::update(&mut transaction, &row).await.map_err(database)?;
        record(&mut transaction, &caller, "update-endpoint", id, sends_to(&row.url)).await?;
    }
    transaction.commit().await.map_err(database)?;
    Ok(row.into())
}

/// Applies the given fields to the row. Returns the names of those that differ.
fn apply(changes: Changes, row: &mut EndpointRow) -> Vec<&'static str> {
    let replaced = [
        ("url", replace(&mut row.url, changes.url)),
        ("description", replace(&mut row.description, changes.description)),
        ("events", replace(&mut row.events, changes.events)),
        ("click_classes", replace(&mut row.click_classes, changes.click_classes)),
    ];
    replaced.into_iter().filter_map(|(field, differs)| differs.then_some(field)).collect()
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
