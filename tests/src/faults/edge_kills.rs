//! kill -9 of the edge, again and again.

use std::time::Duration;

use tokio::time::timeout;

use super::{Stage, at_random, progress};
use crate::tally::Tally;

/// How many kills, under which load.
#[derive(Debug, Clone, Copy)]
pub struct EdgeKills {
    /// How often the edge is killed.
    pub kills: u32,
    /// Visitors, each of whom clicks when it was answered.
    pub connections: u32,
}

/// The longest that an edge is left alone under load before it is killed.
const LIFE: Duration = Duration::from_millis(1_500);

/// The latest moment of a start for a kill that hits it.
const BIRTH: Duration = Duration::from_millis(300);

/// Kills the edge at random moments under load, every third time while it starts.
///
/// # Panics
/// When an edge does not come back.
pub async fn edge_kills(plan: EdgeKills) -> Tally {
    let stage = Stage::new().await;
    let load = stage.load(plan.connections, None);
    let server = &stage.edge.server;
    for kill in 1..=plan.kills {
        if kill % 3 == 0 {
            server.kill().await;
            // Not waited for: what it found in its spool is being sent, or its links are being read.
            let _ = timeout(at_random(BIRTH), server.start()).await;
        } else {
            load.answers(1).await;
            // The moment is the input of this test; nothing is waited for.
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
