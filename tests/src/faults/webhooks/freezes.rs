//! Dispatchers that are frozen and continue: SIGSTOP and SIGCONT.

use std::collections::BTreeMap;

use super::{ARRIVED, SOME, Stage, delivering, receiver, report};
use crate::arrivals::{Arrivals, Interruption};
use crate::engines::Isolated;
use crate::eventually_within;

/// The number of freezes and the load.
#[derive(Debug, Clone, Copy)]
pub struct WebhookFreezes {
    /// How often one of two dispatchers is frozen.
    pub freezes: u32,
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together.
    pub rate: u32,
}

/// Freezes two dispatchers in turn, each until the other one reads all partitions.
///
/// # Panics
/// When the other one does not take over, or a delivery never arrives.
pub async fn webhook_freezes(engines: Isolated, plan: WebhookFreezes) -> Arrivals {
    let receiver = receiver().await;
    let stage = Stage::new(engines, &receiver.url("/in"), &["click.created"]).await;
    let other = stage.deployment.another_dispatcher();
    other.start().await.unwrap();
    let load = stage.load(plan.connections, plan.rate);
    let mut interruptions = Vec::new();
    for round in 1..=plan.freezes {
        delivering(&receiver, SOME).await;
        let held = if round % 2 == 0 { &other } else { &stage.deployment.dispatcher };
        let freezing = async {
            held.pause().await.unwrap();
            all_move_on(&stage).await;
            held.resume().await.unwrap();
        };
        interruptions.push(Interruption::of(freezing).await);
        report(&format!("freeze {round} of {}", plan.freezes), &load, &receiver);
    }
    delivering(&receiver, SOME).await;
    let log = load.stop().await;
    log.is_complete();
    stage.arrivals(&log, &receiver, &interruptions).await
}

/// Waits until the position of each partition of the clicks has moved twice, because one move may have been in flight
/// before.
async fn all_move_on(stage: &Stage) {
    for _ in 0..2 {
        let before = positions(stage).await;
        eventually_within("every partition advances", ARRIVED, async || {
            let now = positions(stage).await;
            if before.iter().all(|(partition, at)| now[partition] > *at) {
                Ok(())
            } else {
                Err((before.clone(), now))
            }
        })
        .await;
    }
}

/// Returns the positions of the partitions of the clicks.
async fn positions(stage: &Stage) -> BTreeMap<i32, i64> {
    let rows: Vec<(i32, i64)> =
        sqlx::query_as("SELECT partition_id, next_offset FROM webhook_offsets WHERE topic LIKE '%clicks'")
            .fetch_all(&mut stage.deployment.engines.postgres().await)
            .await
            .unwrap();
    rows.into_iter().collect()
}
