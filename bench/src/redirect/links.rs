//! The links that visitors ask for.

use std::time::Duration;

use anyhow::Context as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use schemas::{
    id::{LinkId, WorkspaceId},
    message::{ForwardQuery, Link, LinkRecord, Message as _},
    topic::LINKS,
};
use tests::engines::Isolated;
use uuid::Uuid;

use super::DESTINATION;

/// How long Kafka may take to confirm all links.
const PATIENCE: Duration = Duration::from_secs(30);

/// Publishes links of one workspace, as `api` would, and returns their slugs in the topic's order.
pub(super) fn publish(engines: &Isolated, count: usize) -> anyhow::Result<Vec<String>> {
    let producer: BaseProducer = engines.kafka().create()?;
    let topic = engines.topic(LINKS);
    let workspace_id = WorkspaceId::from_uuid(Uuid::now_v7());
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
        };
        slugs.push(link.slug.clone());
        let (key, value) = (link.id.to_string(), LinkRecord::Live(link).encode());
        producer
            .send(BaseRecord::to(&topic).key(&key).payload(&value))
            .map_err(|(error, _)| error)
            .context("cannot publish a link")?;
    }
    producer.flush(PATIENCE).context("Kafka does not confirm the links")?;
    Ok(slugs)
}
