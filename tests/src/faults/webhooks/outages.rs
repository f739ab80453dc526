//! Kafka away for a while, then Postgres.

use std::time::{Duration, SystemTime};

use devstack::Server;

use super::super::progress;
use super::{OwnEngines, SOME, Stage, delivering, receiver};
use crate::arrivals::Arrivals;
use crate::load::Load;
use crate::receiver::Receiver;

/// How long the outages, under which load.
#[derive(Debug, Clone, Copy)]
pub struct WebhookOutages {
    /// How long Kafka is stopped, and then Postgres.
    pub down: Duration,
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together.
    pub rate: u32,
}

/// Stops Kafka under load, starts it again, and does the same to Postgres. No program is started again.
///
/// # Panics
/// When an engine does not come back, a program ends, a click is not answered, or a delivery never arrives.
pub async fn webhook_outages(plan: WebhookOutages) -> Arrivals {
    let own = OwnEngines::start().await;
    let receiver = receiver().await;
    let stage = Stage::new(own.isolated().await, &receiver.url("/in"), &["click.created"]).await;
    let pids = || stage.deployment.services().map(Server::pid);
    let before = pids();
    let load = stage.load(plan.connections, plan.rate);
    let some = u64::from(plan.rate) * 5;
    load.answers(some).await;
    let mut interruptions = Vec::new();
    for engine in [&own.kafka, &own.postgres] {
        delivering(&receiver, SOME).await;
        interruptions.push(SystemTime::now());
        outage(engine, plan.down, &load, &receiver).await;
        load.answers(some).await;
    }
    delivering(&receiver, SOME).await;
    let log = load.stop().await;
    log.is_complete();
    let arrivals = stage.arrivals(&log, &receiver, &interruptions).await;
    assert_eq!(before, pids(), "a program was started again");
    arrivals
}

async fn outage(engine: &Server, down: Duration, load: &Load, receiver: &Receiver) {
    let say = |what: &str| {
        let (answered, requests) = (load.answered(), receiver.count());
        progress(&format!("{} {what}: {answered} clicks answered, {requests} requests", engine.name()));
    };
    engine.stop().await;
    say("is stopped");
    // The length of the outage is the input of this test.
    tokio::time::sleep(down).await;
    engine.start().await.unwrap();
    say("is back");
}
