//! Webhook endpoints: where events go, and the secret they are signed with.

mod create;
mod delete;
mod list;
mod show;
mod store;

use chrono::{DateTime, Utc};
use schemas::id::EndpointId;
use serde::Serialize;
use service::http::ApiError;

pub(crate) use create::create;
pub(crate) use delete::delete;
pub(crate) use list::list;
pub(crate) use show::show;

use store::EndpointRow;

/// The kinds of events an endpoint can subscribe to.
const EVENTS: [&str; 4] = ["click.created", "link.created", "link.updated", "link.deleted"];

/// The classes of clicks an endpoint can ask for.
const CLICK_CLASSES: [&str; 3] = ["human", "bot", "preview"];

/// An endpoint as callers see it.
#[derive(Debug, Serialize)]
pub(crate) struct Endpoint {
    id: EndpointId,
    url: String,
    description: String,
    events: Vec<String>,
    click_classes: Vec<String>,
    status: String,
    disabled_reason: Option<String>,
    consecutive_exhausted: i32,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
    #[serde(with = "schemas::time::millis")]
    updated_at: DateTime<Utc>,
}

impl From<EndpointRow> for Endpoint {
    fn from(row: EndpointRow) -> Self {
        Self {
            id: EndpointId::from_uuid(row.id),
            url: row.url,
            description: row.description,
            events: row.events,
            click_classes: row.click_classes,
            status: row.status,
            disabled_reason: row.disabled_reason,
            consecutive_exhausted: row.consecutive_exhausted,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

fn not_found() -> ApiError {
    ApiError::not_found("No such webhook endpoint in this workspace")
}
