//! Repeated kill -9 of the edge.

use std::time::Duration;

use tokio::time::timeout;

use super::{Stage, at_random, progress};
use crate::tally::Tally;

/// The number of kills and the load.
#[derive(Debug, Clone, Copy)]
pub struct EdgeKills {
    /// How often the edge is killed.
    pub kills: u32,
    /// Visitors, each of whom clicks again after an answer.
    pub connections: u32,
}

/// The longest time under load until the edge is killed.
const LIFE: Duration = Duration::from_millis(1_500);

/// The longest time between a start and a kill during it.
const BIRTH: Duration = Duration::from_millis(300);

/// Kills the edge at random moments under load, every third time while it starts.
///
/// # Panics
/// When the edge does not become ready again.
pub async fn edge_kills(plan: EdgeKills) -> Tally {
    let stage = Stage::new().await;
    let load = stage.load(plan.connections, None);
    let server = &stage.edge.server;
    for kill in 1..=plan.kills {
        if kill % 3 == 0 {
            server.kill().await;
            // Not ready yet: it is publishing clicks of its spool, or reading links.
            let _ = timeout(at_random(BIRTH), server.start()).await;
        } else {
            load.answers(1).await;
            // The random moment is the input of this test.
            tokio::time::sleep(at_random(LIFE)).await;
        }
        server.kill().await;
        server.start().await.unwrap();
        progress(&format!("kill {kill} of {}: {} clicks answered", plan.kills, load.answered()));
    }
    load.answers(500).await;
    let log = load.stop().await;
    stage.tally(&log).await
}
