//! Events in the form in which receivers get them.

use chrono::{DateTime, Utc};
use schemas::id::{AccountId, EndpointId, WorkspaceId};
use schemas::message::{Class, Click, LinkEvent, delivery_id};
use schemas::time;
use serde::Serialize;

use crate::store::NewDelivery;

/// The kind of a click's event.
pub(super) const CLICK_CREATED: &str = "click.created";

/// An event before it is matched with endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    /// The event's id, set at its source, so that reading the topic again gives the same deliveries.
    pub(super) id: String,
    /// The kind, as receivers see it.
    pub(super) kind: &'static str,
    /// The event's workspace.
    pub(super) workspace_id: WorkspaceId,
    /// The class of a click; other events have none.
    pub(super) class: Option<Class>,
    /// When it occurred, by its source's clock.
    pub(super) occurred_at: DateTime<Utc>,
    /// The time of its record in Kafka.
    pub(super) accepted_at: DateTime<Utc>,
    /// The envelope's `data`, as JSON.
    pub(super) data: String,
    /// Whether it is a possible repeat.
    pub(super) again: bool,
}

/// `data` of `click.created`: the specification's six fields, null when missing, and three additional ones.
#[derive(Serialize)]
struct ClickData<'a> {
    link_id: String,
    slug: &'a str,
    country: Option<&'a str>,
    device_type: Option<&'a str>,
    utm_source: Option<&'a str>,
    utm_campaign: Option<&'a str>,
    click_id: &'a str,
    occurred_at: String,
    class: Class,
}

impl Event {
    /// Creates the event of a click. Its id is the click's.
    #[must_use]
    pub(super) fn of_click(click: &Click, accepted_at: DateTime<Utc>) -> Self {
        let data = ClickData {
            link_id: click.link_id.to_string(),
            slug: &click.slug,
            country: click.country.as_deref(),
            device_type: click.device_type.as_deref(),
            utm_source: click.utm_source.as_deref(),
            utm_campaign: click.utm_campaign.as_deref(),
            click_id: &click.click_id,
            occurred_at: time::text(click.occurred_at),
            class: click.class,
        };
        Self {
            id: click.click_id.clone(),
            kind: CLICK_CREATED,
            workspace_id: click.workspace_id,
            class: Some(click.class),
            occurred_at: click.occurred_at,
            accepted_at,
            // Serializing a struct of strings does not fail.
            data: serde_json::to_string(&data).unwrap_or_default(),
            again: click.again,
        }
    }

    /// Creates the event of a change to a link; its `data` is passed on unchanged.
    #[must_use]
    pub(super) fn of_link(event: &LinkEvent, accepted_at: DateTime<Utc>) -> Self {
        Self {
            id: event.event_id.to_string(),
            kind: event.event.as_str(),
            workspace_id: event.workspace_id,
            class: None,
            occurred_at: event.occurred_at,
            accepted_at,
            data: event.data.to_string(),
            again: false,
        }
    }

    /// Creates the event's delivery to an endpoint, always with the same bytes.
    #[must_use]
    pub(super) fn delivery(&self, endpoint_id: EndpointId, account_id: AccountId) -> NewDelivery {
        let id = delivery_id(&self.id, &endpoint_id.to_string());
        let (kind, created_at) = (self.kind, time::text(self.occurred_at));
        // Formatted directly, so that `data` is serialized once for all endpoints; no value here needs escaping.
        let body =
            format!(r#"{{"id":"{id}","event":"{kind}","created_at":"{created_at}","data":{}}}"#, self.data);
        NewDelivery {
            delivery_id: id,
            endpoint_id,
            workspace_id: self.workspace_id,
            account_id,
            event: kind,
            body,
            created_at: self.occurred_at,
            accepted_at: self.accepted_at,
            is_remembered: self.again,
            is_leased: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use schemas::message::Message as _;
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;

    fn endpoint() -> EndpointId {
        EndpointId::from_uuid(Uuid::from_u128(7))
    }

    fn account() -> AccountId {
        AccountId::from_uuid(Uuid::from_u128(2))
    }

    fn click(fixture: &str) -> Event {
        Event::of_click(&Click::decode(fixture.as_bytes()).unwrap(), Utc::now())
    }

    fn body(delivery: &NewDelivery) -> Value {
        serde_json::from_str(&delivery.body).unwrap()
    }

    #[test]
    fn the_event_of_a_click_has_its_fields_without_the_visitor() {
        let event = click(include_str!("../../../schemas/fixtures/click.v1.json"));
        let delivery = event.delivery(endpoint(), account());
        let id = delivery_id(
            "AQGSbz58G3t-mlEvHTxLWmkBoMRQbHsJCQkJCQkJCQkJMvFk5fAerVRhyH4v",
            &endpoint().to_string(),
        );
        assert_eq!(delivery.delivery_id, id);
        assert_eq!(
            body(&delivery),
            json!({
                "id": id.to_string(),
                "event": "click.created",
                "created_at": "2026-09-21T13:33:20.123Z",
                "data": {
                    "link_id": "lnk_01j9qkwz0vfdz9mm9f3my4ppk9",
                    "slug": "spring",
                    "country": "DE",
                    "device_type": "mobile",
                    "utm_source": "newsletter",
                    "utm_campaign": "Frühling",
                    "click_id": "AQGSbz58G3t-mlEvHTxLWmkBoMRQbHsJCQkJCQkJCQkJMvFk5fAerVRhyH4v",
                    "occurred_at": "2026-09-21T13:33:20.123Z",
                    "class": "human",
                },
            })
        );
    }

    #[test]
    fn missing_fields_of_a_click_are_null() {
        let event = click(include_str!("../../../schemas/fixtures/click.v1.bare.json"));
        let data = &body(&event.delivery(endpoint(), account()))["data"];
        for field in ["country", "device_type", "utm_source", "utm_campaign"] {
            assert_eq!(data.get(field), Some(&Value::Null), "{field}");
        }
    }

    #[test]
    fn a_link_event_passes_its_data_on_unchanged() {
        let fixture = include_str!("../../../schemas/fixtures/link_event.v1.json");
        let message = LinkEvent::decode(fixture.as_bytes()).unwrap();
        let event = Event::of_link(&message, Utc::now());
        let body = body(&event.delivery(endpoint(), account()));
        assert_eq!(body["event"], "link.created");
        assert_eq!(body["data"], message.data);
    }

    #[test]
    fn a_delivery_always_has_the_same_bytes() {
        let fixture = include_str!("../../../schemas/fixtures/click.v1.json");
        let accepted_at = Utc::now();
        let delivery = || Event { accepted_at, ..click(fixture) }.delivery(endpoint(), account());
        assert_eq!(delivery(), delivery());
    }
}
