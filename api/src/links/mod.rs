//! Links: create, list, get, change, delete, QR codes.

mod bulk;
mod counters;
mod create;
mod cursor;
mod delete;
mod destination;
mod export;
mod fields;
mod import;
mod list;
mod qr;
mod room;
mod show;
mod slug;
mod store;
mod update;
mod upsert;

use chrono::{DateTime, Utc};
use schemas::id::{LinkId, UserId};
use schemas::message::LinkEventKind;
use serde::Serialize;
use serde_json::{Value, json};
use service::http::ApiError;
use uuid::Uuid;

pub(crate) use bulk::bulk;
pub(crate) use create::create;
pub(crate) use delete::delete;
pub(crate) use export::{Export, export};
pub(crate) use import::{import, refused_of_import, show_import, work as work_imports_off};
pub(crate) use list::list;
pub(crate) use qr::qr;
pub(crate) use show::show;
pub(crate) use slug::{Fault as SlugFault, check_kind as check_slug};
pub(crate) use update::update;
pub(crate) use upsert::upsert;

use crate::App;
use crate::outbox::Outgoing;
use crate::stats::conversion_rate;
use counters::Counters;
pub(crate) use store::{LinkRow, count_of_account};

/// A link as callers and webhook receivers see it, without counters.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LinkObject {
    id: LinkId,
    user_id: UserId,
    slug: String,
    name: String,
    destination: String,
    is_active: bool,
    is_locked: bool,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
    #[serde(with = "schemas::time::millis")]
    updated_at: DateTime<Utc>,
    external_id: Option<String>,
    tags: Vec<String>,
    redirect_status: i16,
    forward_query: String,
    append_click_id: bool,
    #[serde(with = "schemas::time::optional_millis")]
    expires_at: Option<DateTime<Utc>>,
    short_url: String,
}

impl LinkObject {
    fn new(row: &LinkRow, app: &App) -> Self {
        Self {
            id: row.link_id(),
            user_id: row.owner_id(),
            slug: row.slug.clone(),
            name: row.name.clone(),
            destination: row.destination.clone(),
            is_active: row.is_active,
            is_locked: row.is_locked,
            created_at: row.created_at,
            updated_at: row.updated_at,
            external_id: row.external_id.clone(),
            tags: row.tags.clone(),
            redirect_status: row.redirect_status,
            forward_query: row.forward_query.clone(),
            append_click_id: row.append_click_id,
            expires_at: row.expires_at,
            short_url: app.short_url(&row.slug),
        }
    }

    /// The data of a `link.created` or, with the fields that changed, of a `link.updated`.
    fn event_data(&self, changed: Option<&[&str]>) -> Value {
        // A struct with string keys always becomes a JSON object.
        let mut data = serde_json::to_value(self).unwrap_or_default();
        if let Some(changed) = changed {
            data["changed"] = json!(changed);
        }
        data
    }
}

/// The full link: the object and its counters.
#[derive(Debug, Serialize)]
pub(crate) struct FullLink {
    #[serde(flatten)]
    link: LinkObject,
    total_clicks: Option<u64>,
    unique_clicks: Option<u64>,
    conversions: Option<u64>,
    /// Percent of unique clicks, two decimals; null when the numbers are not known.
    conversion_rate: Option<f64>,
    #[serde(with = "schemas::time::optional_millis")]
    as_of: Option<DateTime<Utc>>,
}

impl FullLink {
    fn new(link: LinkObject, counters: &Counters, conversions: Option<u64>) -> Self {
        let (total_clicks, unique_clicks) = counters.of(link.id.uuid()).unzip();
        Self {
            link,
            total_clicks,
            unique_clicks,
            conversions,
            conversion_rate: conversions
                .zip(unique_clicks)
                .map(|(conversions, unique)| conversion_rate(conversions, unique)),
            as_of: counters.as_of(),
        }
    }

    /// A link that was made a moment ago: nobody has clicked it.
    fn unclicked(link: LinkObject) -> Self {
        Self {
            link,
            total_clicks: Some(0),
            unique_clicks: Some(0),
            conversions: Some(0),
            conversion_rate: Some(0.0),
            as_of: Some(Utc::now()),
        }
    }
}

/// The link of a path, or the one answer for "not there" and "not yours".
pub(crate) async fn require(app: &App, workspace: Uuid, id: LinkId) -> Result<LinkRow, ApiError> {
    store::find(&app.pool, workspace, id.uuid()).await.map_err(crate::error::database)?.ok_or_else(not_found)
}

/// What the edges and the receivers are told of a link that was locked or unlocked.
pub(crate) fn told_of_lock(row: &LinkRow, app: &App) -> [Outgoing; 2] {
    let data = LinkObject::new(row, app).event_data(Some(&["is_locked"]));
    store::messages(row, &row.record(), store::Told { kind: LinkEventKind::Updated, data })
}

fn not_found() -> ApiError {
    ApiError::not_found("There is no such link in this workspace.")
}

fn external_id_taken() -> ApiError {
    ApiError::external_id_taken("Another link in this workspace already has this external_id.")
}

fn slug_taken(slug: &str) -> ApiError {
    ApiError::slug_taken(format!("The slug {slug:?} is already taken."))
}
