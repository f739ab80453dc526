//! Faults under load: short in the tests, long in `./dev soak`. Faults of counting are in [`counts`].
//!
//! A fault of the edge starts a Kafka and an edge, lets visitors click, breaks and repairs something, and returns a
//! tally of the clicks. The visitors' log of answered click ids is the oracle.

pub mod counts;
mod edge_kills;
mod import;
mod kafka_kills;
mod kafka_outage;
mod webhooks;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use devstack::{Options, Server, kafka, random};

pub use edge_kills::{EdgeKills, edge_kills};
pub use import::{ImportKill, Imported, import_kill};
pub use kafka_kills::{KafkaKills, kafka_kills};
pub use kafka_outage::{KafkaOutage, Outage, kafka_outage};
pub use webhooks::{
    Beside, Flooded, OwnEngines, Promotion, Upgrade, Upgraded, Verified, WebhookFlood, WebhookFreezes,
    WebhookHoles, WebhookKills, WebhookOutages, WebhookStops, WebhookVerify, promotion, upgrade,
    webhook_flood, webhook_freezes, webhook_holes, webhook_kills, webhook_outages, webhook_stops,
    webhook_verify,
};

use crate::edge::Edge;
use crate::engines::{Isolated, topics_on};
use crate::links;
use crate::load::{Load, Log};
use crate::tally::Tally;

/// The number of links.
const LINKS: usize = 100;

/// Starts a Kafka that a test may stop.
///
/// # Panics
/// When it does not start.
pub async fn own_kafka() -> Server {
    kafka::start(Options::throw_away("kafka").unwrap()).await.unwrap()
}

/// The same, with the folder of its partitions.
///
/// # Panics
/// When it does not start.
pub async fn own_kafka_and_folder() -> (Server, PathBuf) {
    let options = Options::throw_away("kafka").unwrap();
    let folder = options.folder.join("data");
    (kafka::start(options).await.unwrap(), folder)
}

/// A Kafka, with an edge that knows some links.
struct Stage {
    edge: Edge,
    engines: Isolated,
    slugs: Vec<String>,
    // Declared last, so that the edge is dropped first.
    kafka: Server,
}

impl Stage {
    async fn new() -> Self {
        let kafka = own_kafka().await;
        let engines = topics_on(kafka.url()).await;
        let slugs = links::publish(&engines, LINKS);
        let edge = Edge::start(&engines, &[]).await;
        // The links are read in order, so an edge that knows the last link knows all.
        edge.knows(&slugs[LINKS - 1]).await;
        Self { edge, engines, slugs, kafka }
    }

    fn load(&self, connections: u32, rate: Option<u32>) -> Load {
        Load::start(self.edge.address, &self.slugs, connections, rate)
    }

    /// Waits until the edge has published everything, stops it, and compares.
    async fn tally(&self, log: &Log) -> Tally {
        self.edge.ships_everything().await;
        self.edge.stop().await;
        Tally::of(&self.engines, log)
    }
}

/// Returns a random duration below `limit`.
///
/// # Panics
/// When there are no random bytes.
pub fn at_random(limit: Duration) -> Duration {
    let random = u32::from_le_bytes(random::bytes().unwrap());
    limit * (random >> 16) / 0x1_0000
}

/// Writes the progress of a long run to standard error.
pub fn progress(line: &str) {
    // Ignores a closed output.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
