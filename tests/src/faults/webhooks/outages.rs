//! An outage of Kafka, then of Postgres.

use std::time::{Duration, Instant};

use devstack::Server;

use super::{ARRIVED, OwnEngines, SOME, Stage, delivering, receiver, report};
use crate::arrivals::{Arrivals, Interruption};
use crate::load::Load;
use crate::receiver::Receiver;
use crate::{eventually_within, readyz};

/// How long it may take until deliveries continue after an outage. It should take seconds.
const RESUMED: Duration = Duration::from_secs(90);

/// The length of the outages and the load.
#[derive(Debug, Clone, Copy)]
pub struct WebhookOutages {
    /// How long Kafka is stopped, and then Postgres.
    pub down: Duration,
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together.
    pub rate: u32,
}

/// Stops and starts Kafka under load, then Postgres, without restarting a program.
///
/// # Panics
/// When an engine does not become ready again, a program ends, a click is not answered, or a delivery never arrives.
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
        interruptions.push(Interruption::of(outage(engine, plan.down, &stage, &load, &receiver)).await);
        load.answers(some).await;
    }
    delivering(&receiver, SOME).await;
    let log = load.stop().await;
    log.is_complete();
    let arrivals = stage.arrivals(&log, &receiver, &interruptions).await;
    assert_eq!(before, pids(), "a program was restarted");
    arrivals
}

async fn outage(engine: &Server, down: Duration, stage: &Stage, load: &Load, receiver: &Receiver) {
    let say = |what: &str| report(&format!("{} {what}", engine.name()), load, receiver);
    engine.stop().await;
    let stopped = Instant::now();
    say("is stopped");
    is_ready(&stage.deployment.dispatcher, false).await;
    // The length of the outage is the input of this test.
    tokio::time::sleep(down.saturating_sub(stopped.elapsed())).await;
    engine.start().await.unwrap();
    let back = Instant::now();
    say("is back");
    let wanted = receiver.count() + SOME;
    eventually_within("deliveries continue", RESUMED, async || match receiver.count() {
        count if count >= wanted => Ok(()),
        count => Err(format!("{count} of {wanted}")),
    })
    .await;
    say(&format!("has been back for {:.1?}, and deliveries continue", back.elapsed()));
    is_ready(&stage.deployment.dispatcher, true).await;
}

/// Waits until a program is ready, or not ready.
async fn is_ready(program: &Server, wanted: bool) {
    eventually_within("the program reports its readiness", ARRIVED, async || {
        let (status, report) = readyz(program.url()).await;
        if (status == 200) == wanted { Ok(()) } else { Err(report) }
    })
    .await;
}
