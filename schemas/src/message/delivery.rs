//! A webhook delivery: one event for one endpoint.

use uuid::Uuid;

/// Maximum number of attempts for a delivery, from the specification.
pub const MAX_ATTEMPTS: u16 = 5;

/// Returns the id of an event's delivery to an endpoint, which depends on these two only.
///
/// UUIDv5 of `event id|endpoint id` in the namespace UUIDv5(URL, `urn:link-tracking:webhook-delivery`).
pub fn delivery_id(event_id: &str, endpoint_id: &str) -> Uuid {
    let namespace = Uuid::new_v5(&Uuid::NAMESPACE_URL, b"urn:link-tracking:webhook-delivery");
    Uuid::new_v5(&namespace, format!("{event_id}|{endpoint_id}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_id_depends_on_event_and_endpoint() {
        // Computed with Python's uuid module.
        assert_eq!(delivery_id("evt_1", "ep_1").to_string(), "9cfa3820-0d1e-54c3-bc2d-242b3ef5ef15");
        assert_ne!(delivery_id("evt_1", "ep_2"), delivery_id("evt_1", "ep_1"));
    }
}
