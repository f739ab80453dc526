//! kill -9 of Kafka, which is restarted immediately.

use super::{Stage, progress};
use crate::tally::Tally;

/// The number of kills and the load.
#[derive(Debug, Clone, Copy)]
pub struct KafkaKills {
    /// How often Kafka is killed.
    pub kills: u32,
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together.
    pub rate: u32,
}

/// Kills Kafka under load and starts it again.
///
/// # Panics
/// When Kafka does not become ready again, or a click is not answered with a redirect.
pub async fn kafka_kills(plan: KafkaKills) -> Tally {
    let stage = Stage::new().await;
    let load = stage.load(plan.connections, Some(plan.rate));
    for kill in 1..=plan.kills {
        load.answers(u64::from(plan.rate)).await;
        stage.kafka.kill().await;
        load.answers(u64::from(plan.rate)).await;
        stage.kafka.start().await.unwrap();
        progress(&format!("kill {kill} of {}: {} clicks answered", plan.kills, load.answered()));
    }
    load.answers(u64::from(plan.rate)).await;
    let log = load.stop().await;
    log.is_complete();
    stage.tally(&log).await
}
