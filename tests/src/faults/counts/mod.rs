//! Faults of counting: clicks are written to their topic continuously, something is broken and repaired, and in the end
//! each click is exactly one row.
//!
//! The broken engine is started for the fault; the other one is the one that the environment names, if any.

mod clickhouse_kills;
mod clickhouse_outage;
mod kafka_kills;
mod members;
mod processor_kills;
mod replicas;
mod stops;
mod throughput;

use devstack::{Engine, Kind, Options, Server};
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use schemas::topic;

pub use clickhouse_kills::{ClickhouseKills, counts_clickhouse_kills};
pub use clickhouse_outage::{ClickhouseOutage, counts_clickhouse_outage};
pub use kafka_kills::{CountsKafkaKills, counts_kafka_kills};
pub use members::{Members, counts_members};
pub use processor_kills::{ProcessorKills, counts_processor_kills};
pub use replicas::{ReplicaFaults, counts_replica_faults};
pub use stops::{Stops, counts_stops};
pub use throughput::{Throughput, counts_throughput};

use super::progress;
use crate::clicks::Clicks;
use crate::counted::{count, more_rows};
use crate::engines::{Isolated, counting_on};

/// The engines of a fault.
struct Stage {
    engines: Isolated,
    kafka: Engine,
    clickhouse: Engine,
}

impl Stage {
    /// Starts the engines in `own`, finds or starts the others, and creates the default number of partitions.
    async fn new(own: &[Kind]) -> Self {
        Self::with_partitions(own, topic::CLICKS.partitions).await
    }

    async fn with_partitions(own: &[Kind], partitions: i32) -> Self {
        let engine = async |kind: Kind| {
            let options = |kind: Kind| Options::throw_away(kind.name());
            if own.contains(&kind) {
                let server = kind.start(options(kind).unwrap()).await.unwrap();
                Engine::Started(server.into())
            } else {
                Engine::from_env_or_start(kind, options).await.unwrap()
            }
        };
        let (kafka, clickhouse) = tokio::join!(engine(Kind::Kafka), engine(Kind::ClickHouse));
        let engines = counting_on(kafka.url(), clickhouse.url(), partitions).await;
        Self { engines, kafka, clickhouse }
    }

    /// Increases the partitions of the topic of clicks to this number.
    async fn grow_to(&self, partitions: usize) {
        let admin: AdminClient<DefaultClientContext> = self.engines.kafka().create().unwrap();
        let topic = self.engines.topic(topic::CLICKS);
        let more = NewPartitions::new(&topic, partitions);
        for result in admin.create_partitions([&more], &AdminOptions::new()).await.unwrap() {
            result.unwrap();
        }
    }

    /// Returns the number of rows. ClickHouse must be running.
    async fn rows(&self) -> usize {
        count(&self.engines, "SELECT count() FROM clicks").await
    }

    /// Waits until there are more rows.
    async fn more_rows(&self) {
        more_rows(&self.engines).await;
    }

    /// Reports progress after a step, with the numbers of clicks and rows.
    async fn report(&self, step: &str, clicks: &Clicks) {
        let (rows, written) = (self.rows().await, clicks.confirmed());
        progress(&format!("{step}: {written} clicks written, {rows} rows"));
    }
}

/// Returns an engine that this fault may break.
fn own(engine: &Engine) -> &Server {
    engine.server().expect("the fault has started this engine")
}
