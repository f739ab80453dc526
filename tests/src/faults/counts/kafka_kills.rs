//! kill -9 of Kafka while clicks are counted.

use devstack::Kind;

use super::{Stage, own};
use crate::clicks::{Clicks, Plan};
use crate::counted::{Exact, all_counted, is_exact};
use crate::processor::Processor;

/// The number of kills and the load.
#[derive(Debug, Clone, Copy)]
pub struct CountsKafkaKills {
    /// How often Kafka is killed.
    pub kills: u32,
    /// Clicks per second.
    pub rate: u32,
}

/// Kills Kafka under load and starts it again.
///
/// # Panics
/// When a click is lost or doubled.
pub async fn counts_kafka_kills(plan: CountsKafkaKills) -> Exact {
    let stage = Stage::new(&[Kind::Kafka]).await;
    let clicks = Clicks::start(&stage.engines, Plan::at(plan.rate));
    let processor = Processor::start(&stage.engines).await;
    for kill in 1..=plan.kills {
        stage.more_rows().await;
        clicks.more(u64::from(plan.rate)).await;
        own(&stage.kafka).kill().await;
        own(&stage.kafka).start().await.unwrap();
        stage.report(&format!("kill {kill} of {}", plan.kills), &clicks).await;
    }
    clicks.more(u64::from(plan.rate)).await;
    let ledger = clicks.stop().await;
    all_counted(&stage.engines, &ledger).await;
    processor.stop().await;
    is_exact(&stage.engines, &ledger).await
}
