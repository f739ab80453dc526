//! A webhook delivery: one event on its way to one endpoint.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Message, Version};
use crate::id::{EndpointId, WorkspaceId};

/// Attempts that a delivery gets, by the specification.
pub const MAX_ATTEMPTS: u16 = 5;

/// A delivery on topic `webhook.deliveries`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The message's version.
    #[serde(rename = "v")]
    pub version: Version<1>,
    /// Identifies the delivery for life; see [`delivery_id`].
    pub delivery_id: Uuid,
    /// Where it goes.
    pub endpoint_id: EndpointId,
    /// Whose event it is.
    pub workspace_id: WorkspaceId,
    /// The event's kind, `click.created` for example.
    pub event: String,
    /// The event's own time, not an attempt's.
    #[serde(with = "crate::time::millis")]
    pub created_at: DateTime<Utc>,
    /// The exact bytes to sign and send: written once, so that every attempt sends the same.
    pub body: String,
}

impl Message for Delivery {
    const VERSION: u32 = 1;
}

/// The id under which an event goes to an endpoint: the same however often it is computed.
///
/// UUIDv5 over `event id|endpoint id` in the namespace UUIDv5(URL, `urn:link-tracking:webhook-delivery`).
pub fn delivery_id(event_id: &str, endpoint_id: &str) -> Uuid {
    let namespace = Uuid::new_v5(&Uuid::NAMESPACE_URL, b"urn:link-tracking:webhook-delivery");
    Uuid::new_v5(&namespace, format!("{event_id}|{endpoint_id}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_id_is_a_function_of_event_and_endpoint() {
        // Computed with Python's uuid module.
        assert_eq!(delivery_id("evt_1", "ep_1").to_string(), "9cfa3820-0d1e-54c3-bc2d-242b3ef5ef15");
        assert_ne!(delivery_id("evt_1", "ep_2"), delivery_id("evt_1", "ep_1"));
    }
}
