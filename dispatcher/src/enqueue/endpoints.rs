//! The enabled endpoints, and which events they receive.

use std::collections::HashMap;

use chrono::TimeDelta;
use schemas::id::WorkspaceId;

use super::event::Event;
use crate::store::Endpoint;

/// How far the clock of an event's time may be behind the clock of `enabled_from`.
const CLOCK_TOLERANCE: TimeDelta = TimeDelta::seconds(5);

/// Returns whether an endpoint receives an event.
fn wants(endpoint: &Endpoint, event: &Event) -> bool {
    endpoint.workspace_id == event.workspace_id
        && endpoint.events.iter().any(|kind| kind == event.kind)
        && event
            .class
            .is_none_or(|class| endpoint.click_classes.iter().any(|wanted| wanted == class.as_str()))
        && event.accepted_at >= endpoint.enabled_from - CLOCK_TOLERANCE
}

/// All enabled endpoints at one version of `endpoints_version`.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    by_workspace: HashMap<WorkspaceId, Vec<Endpoint>>,
}

impl Endpoints {
    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_workspace.is_empty()
    }

    /// Returns the endpoints that receive an event.
    pub(super) fn matching<'a>(&'a self, event: &'a Event) -> impl Iterator<Item = &'a Endpoint> {
        self.by_workspace
            .get(&event.workspace_id)
            .into_iter()
            .flatten()
            .filter(|endpoint| wants(endpoint, event))
    }
}

impl FromIterator<Endpoint> for Endpoints {
    fn from_iter<I: IntoIterator<Item = Endpoint>>(endpoints: I) -> Self {
        let mut by_workspace: HashMap<WorkspaceId, Vec<Endpoint>> = HashMap::new();
        for endpoint in endpoints {
            by_workspace.entry(endpoint.workspace_id).or_default().push(endpoint);
        }
        Self { by_workspace }
    }
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use schemas::id::{AccountId, EndpointId};
    use schemas::message::{Class, Click, LinkEvent, Message as _};
    use uuid::Uuid;

    use super::*;

    fn click() -> Event {
        let click = Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json")).unwrap();
        Event::of_click(&click, "2026-09-21T13:33:21Z".parse().unwrap())
    }

    fn endpoint_of(event: &Event) -> Endpoint {
        Endpoint {
            id: EndpointId::from_uuid(Uuid::from_u128(1)),
            workspace_id: event.workspace_id,
            account_id: AccountId::from_uuid(Uuid::from_u128(2)),
            events: vec![event.kind.to_owned()],
            click_classes: vec!["human".to_owned()],
            enabled_from: event.accepted_at,
        }
    }

    #[test]
    fn an_endpoint_gets_the_kinds_and_classes_that_it_subscribed_to() {
        let event = click();
        let endpoint = endpoint_of(&event);
        assert!(wants(&endpoint, &event));
        assert!(!wants(&endpoint, &Event { kind: "link.created", ..event.clone() }));
        assert!(!wants(&endpoint, &Event { class: Some(Class::Bot), ..event.clone() }));
        let bots_too = Endpoint { click_classes: vec!["human".to_owned(), "bot".to_owned()], ..endpoint };
        assert!(wants(&bots_too, &Event { class: Some(Class::Bot), ..event }));
    }

    #[test]
    fn click_classes_do_not_filter_link_events() {
        let event =
            LinkEvent::decode(include_bytes!("../../../schemas/fixtures/link_event.v1.json")).unwrap();
        let event = Event::of_link(&event, Utc::now());
        assert!(wants(&Endpoint { click_classes: vec![], ..endpoint_of(&event) }, &event));
    }

    #[test]
    fn an_endpoint_gets_no_event_from_before_it_was_enabled() {
        let event = click();
        let enabled = |later| Endpoint {
            enabled_from: event.accepted_at + TimeDelta::milliseconds(later),
            ..endpoint_of(&event)
        };
        assert!(wants(&enabled(5_000), &event));
        assert!(!wants(&enabled(5_001), &event));
    }

    #[test]
    fn only_the_events_own_workspace_is_matched() {
        let event = click();
        let own = endpoint_of(&event);
        let other = Endpoint { workspace_id: WorkspaceId::from_uuid(Uuid::from_u128(9)), ..own.clone() };
        let endpoints: Endpoints = [own.clone(), other].into_iter().collect();
        assert_eq!(endpoints.matching(&event).collect::<Vec<_>>(), [&own]);
    }
}
