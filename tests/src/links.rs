//! Publishes links on their topic, for tests without an API.

use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{ForwardQuery, Link, LinkRecord, Message as _};
use schemas::topic::LINKS;
use uuid::Uuid;

use crate::PATIENCE;
use crate::engines::Isolated;

/// The destination of all links.
pub const DESTINATION: &str = "https://shop.example.com/landing";

/// Publishes links of a new workspace, as `api` does, and returns their slugs in the topic's order.
///
/// # Panics
/// When Kafka does not confirm them.
pub fn publish(engines: &Isolated, count: usize) -> Vec<String> {
    publish_of(engines, WorkspaceId::from_uuid(Uuid::now_v7()), count)
}

/// The same for an existing workspace.
///
/// # Panics
/// As [`publish`].
pub fn publish_of(engines: &Isolated, workspace_id: WorkspaceId, count: usize) -> Vec<String> {
    let producer: BaseProducer = engines.kafka().create().unwrap();
    let topic = engines.topic(LINKS);
    let mut slugs = Vec::new();
    for number in 0..count {
        let link = Link {
            version: Default::default(),
            id: LinkId::from_uuid(Uuid::now_v7()),
            revision: 1,
            workspace_id,
            slug: format!("spring-{number}"),
            destination: DESTINATION.to_owned(),
            is_active: true,
            redirect_status: 302,
            forward_query: ForwardQuery::Append,
            append_click_id: true,
            expires_at: None,
            is_blocked: false,
        };
        slugs.push(link.slug.clone());
        let (key, value) = (link.id.to_string(), LinkRecord::Live(link).encode());
        producer
            .send(BaseRecord::to(&topic).key(&key).payload(&value))
            .unwrap_or_else(|(error, _)| panic!("cannot publish a link: {error}"));
    }
    producer.flush(PATIENCE).unwrap();
    slugs
}
