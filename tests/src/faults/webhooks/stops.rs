//! Dispatchers that are stopped and started.

use super::super::progress;
use super::{Stage, receiver};
use crate::arrivals::Arrivals;
use crate::deployment::Deployment;
use crate::engines::Isolated;
use crate::signals::stop;

/// The number of stops and the load.
#[derive(Debug, Clone, Copy)]
pub struct WebhookStops {
    /// How often a dispatcher is stopped.
    pub stops: u32,
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together.
    pub rate: u32,
}

/// Stops two dispatchers in turn under load with SIGTERM, and starts each again.
///
/// # Panics
/// When one does not end with exit code 0 within 30 s or does not become ready again, or a delivery never arrives.
pub async fn webhook_stops(engines: Isolated, plan: WebhookStops) -> Arrivals {
    let receiver = receiver().await;
    // Longer than the 30 s that a stop may take, so that no attempt in flight is aborted.
    let deployment = Deployment::start_on(engines, &[("HOPLINE_DRAIN_SECONDS", "600")]).await;
    let stage = Stage::on(deployment, &receiver.url("/in"), &["click.created"]).await;
    let other = stage.deployment.another_dispatcher();
    let load = stage.load(plan.connections, plan.rate);
    other.start().await.unwrap();
    for round in 1..=plan.stops {
        let leaving = if round % 2 == 0 { &other } else { &stage.deployment.dispatcher };
        load.answers(u64::from(plan.rate)).await;
        stop(leaving).await;
        load.answers(u64::from(plan.rate)).await;
        leaving.start().await.unwrap();
        progress(&format!("stop {round} of {}: {} clicks answered", plan.stops, load.answered()));
    }
    load.answers(u64::from(plan.rate)).await;
    let log = load.stop().await;
    log.is_complete();
    stage.arrivals(&log, &receiver, &[]).await
}
