//! Webhook endpoints: where events go, and the secret they are signed with.
//!
//! All of it needs a key that may write and a plan that has webhooks, reading too.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod delivery;
pub(crate) mod enable;
pub(crate) mod failures;
pub(crate) mod fields;
pub(crate) mod list;
pub(crate) mod redeliver;
pub(crate) mod rotate;
pub(crate) mod secret;
pub(crate) mod show;
pub(crate) mod test;
pub(crate) mod update;

use chrono::{DateTime, Utc};
use schemas::id::EndpointId;
use serde::Serialize;
use serde_json::{Value, json};
use service::http::ApiError;
use sqlx::PgConnection;
use url::Url;

use crate::error::database;
use crate::store::audit::{self, Of};
use crate::store::endpoints::EndpointRow;
use crate::web::caller::Caller;

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
    /// Whether it is enabled and its newest attempt failed.
    is_failing: bool,
    #[serde(with = "schemas::time::optional_millis")]
    last_success_at: Option<DateTime<Utc>>,
    #[serde(with = "schemas::time::optional_millis")]
    last_failure_at: Option<DateTime<Utc>>,
    /// Deliveries that its queue could not take.
    dropped_deliveries: i64,
    #[serde(with = "schemas::time::optional_millis")]
    first_dropped_at: Option<DateTime<Utc>>,
    #[serde(with = "schemas::time::optional_millis")]
    last_dropped_at: Option<DateTime<Utc>>,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
    #[serde(with = "schemas::time::millis")]
    updated_at: DateTime<Utc>,
}

impl From<EndpointRow> for Endpoint {
    fn from(row: EndpointRow) -> Self {
        Self {
            id: EndpointId::from_uuid(row.id),
            // Without a success any failure is the newest attempt.
            is_failing: row.status == "enabled" && row.last_failure_at > row.last_success_at,
            last_success_at: row.last_success_at,
            last_failure_at: row.last_failure_at,
            dropped_deliveries: row.dropped,
            first_dropped_at: row.first_dropped_at,
            last_dropped_at: row.last_dropped_at,
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

/// The endpoint, and its secret for the only time.
#[derive(Debug, Serialize)]
pub(crate) struct WithSecret {
    #[serde(flatten)]
    endpoint: Endpoint,
    secret: String,
}

/// Records a change of an endpoint, with details, in the audit trail.
async fn record(
    transaction: &mut PgConnection,
    caller: &Caller,
    action: &str,
    id: EndpointId,
    details: Value,
) -> Result<(), ApiError> {
    let of = Of::Workspace(caller.workspace);
    audit::record(transaction, &caller.actor(), action, &id.to_string(), of, details).await.map_err(database)
}

/// Returns the scheme, host and port of an endpoint's URL for the audit trail. The rest is often a secret.
fn sends_to(url: &str) -> Value {
    json!({ "sends_to": Url::parse(url).map(|url| url.origin().ascii_serialization()).ok() })
}

fn not_found() -> ApiError {
    ApiError::not_found("There is no such webhook endpoint in this workspace.")
}

fn disabled() -> ApiError {
    ApiError::bad_request("The webhook endpoint is disabled. Enable it in the dashboard first.")
}
