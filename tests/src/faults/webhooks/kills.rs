//! Repeated kill -9 of dispatchers.

use std::time::Duration;

use tokio::time::timeout;

use super::super::at_random;
use super::{SOME, Stage, delivering, receiver, report};
use crate::arrivals::{Arrivals, Interruption};
use crate::engines::Isolated;

/// The number of kills and the load.
#[derive(Debug, Clone, Copy)]
pub struct WebhookKills {
    /// How often a dispatcher is killed.
    pub kills: u32,
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together.
    pub rate: u32,
}

/// The longest time under load until a dispatcher is killed.
const LIFE: Duration = Duration::from_millis(1_500);

/// The longest time between a start and a kill during it.
const BIRTH: Duration = Duration::from_millis(500);

/// Kills two dispatchers in turn at random moments under load, every third time while it starts.
///
/// # Panics
/// When one does not become ready again, or a delivery never arrives.
pub async fn webhook_kills(engines: Isolated, plan: WebhookKills) -> Arrivals {
    let receiver = receiver().await;
    let stage = Stage::new(engines, &receiver.url("/in"), &["click.created"]).await;
    let other = stage.deployment.another_dispatcher();
    other.start().await.unwrap();
    let load = stage.load(plan.connections, plan.rate);
    let mut killed = Vec::new();
    for kill in 1..=plan.kills {
        let victim = if kill % 2 == 0 { &other } else { &stage.deployment.dispatcher };
        if kill % 3 == 0 {
            delivering(&receiver, 1).await;
            killed.push(Interruption::of(victim.kill()).await);
            // Not ready yet: it is taking partitions over, or releasing its former leases.
            let _ = timeout(at_random(BIRTH), victim.start()).await;
        } else {
            delivering(&receiver, SOME).await;
            // The random moment is the input of this test.
            tokio::time::sleep(at_random(LIFE)).await;
        }
        killed.push(Interruption::of(victim.kill()).await);
        victim.start().await.unwrap();
        report(&format!("kill {kill} of {}", plan.kills), &load, &receiver);
    }
    delivering(&receiver, SOME).await;
    let log = load.stop().await;
    log.is_complete();
    stage.arrivals(&log, &receiver, &killed).await
}
