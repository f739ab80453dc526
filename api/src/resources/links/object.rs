//! A link as callers see it.

use chrono::{DateTime, Utc};
use schemas::id::{LinkId, UserId};
use schemas::message::LinkEventKind;
use serde::Serialize;
use serde_json::{Value, json};
use service::http::ApiError;
use url::Url;
use uuid::Uuid;

use super::counters::Counters;
use crate::app::App;
use crate::error::database;
use crate::resources::stats::conversion_rate;
use crate::store::links;
use crate::store::links::LinkRow;
use crate::store::outbox::Outgoing;

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
    is_blocked: bool,
    blocked_reason: Option<String>,
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
    pub(crate) fn new(row: &LinkRow, app: &App) -> Self {
        Self {
            id: row.link_id(),
            user_id: row.owner_id(),
            slug: row.slug.clone(),
            name: row.name.clone(),
            destination: row.destination.clone(),
            is_active: row.is_active,
            is_locked: row.is_locked,
            is_blocked: row.is_blocked,
            blocked_reason: row.blocked_reason.clone().or_else(|| {
                row.blocked_host.as_ref().map(|host| format!("Destinations on {host} are blocked."))
            }),
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

    /// Returns the data of a `link.created` event or, with the changed fields, of a `link.updated`.
    pub(crate) fn event_data(&self, changed: Option<&[&str]>) -> Value {
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
    /// Percent of unique clicks, two decimals; null when unknown.
    conversion_rate: Option<f64>,
    #[serde(with = "schemas::time::optional_millis")]
    as_of: Option<DateTime<Utc>>,
    /// Properties of the link that its owner may not expect. Absent when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'static str>,
}

const REPLACES_CLICK_ID: &str = "The click_id in the destination is replaced by the ID of each click. \
    To keep it, turn off append_click_id.";

impl FullLink {
    pub(super) fn new(link: LinkObject, counters: &Counters, conversions: Option<u64>) -> Self {
        let (total_clicks, unique_clicks) = counters.of(link.id.uuid()).unzip();
        Self {
            warnings: warnings(&link),
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

    /// A new link, without clicks.
    pub(crate) fn unclicked(link: LinkObject) -> Self {
        Self {
            warnings: warnings(&link),
            link,
            total_clicks: Some(0),
            unique_clicks: Some(0),
            conversions: Some(0),
            conversion_rate: Some(0.0),
            as_of: Some(Utc::now()),
        }
    }
}

fn warnings(link: &LinkObject) -> Vec<&'static str> {
    let has_click_id = || {
        Url::parse(&link.destination).is_ok_and(|url| url.query_pairs().any(|(name, _)| name == "click_id"))
    };
    if link.append_click_id && has_click_id() { vec![REPLACES_CLICK_ID] } else { vec![] }
}

/// Finds a link of a workspace. A missing link and one of another workspace get the same 404.
pub(crate) async fn require(app: &App, workspace: Uuid, id: LinkId) -> Result<LinkRow, ApiError> {
    links::find(&app.pool, workspace, id.uuid()).await.map_err(database)?.ok_or_else(not_found)
}

/// Returns the messages to the edges and the receivers about a link of which one field changed.
pub(crate) fn change_messages(row: &LinkRow, app: &App, field: &str) -> [Outgoing; 2] {
    let data = LinkObject::new(row, app).event_data(Some(&[field]));
    links::messages(row, &row.record(), links::EventPayload { kind: LinkEventKind::Updated, data })
}

pub(crate) fn not_found() -> ApiError {
    ApiError::not_found("There is no such link in this workspace.")
}

pub(crate) fn external_id_taken() -> ApiError {
    ApiError::external_id_taken("Another link in this workspace already has this external_id.")
}

pub(crate) fn slug_taken(slug: &str) -> ApiError {
    ApiError::slug_taken(format!("The slug {slug:?} is already taken."))
}
