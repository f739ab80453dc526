//! The processor's configuration.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use rdkafka::error::KafkaError;
use schemas::topic;
use service::clickhouse::{Clickhouse, ClickhouseConfig};
use service::kafka::KafkaConfig;
use service::process::Settings;
use service::traces::TraceConfig;

use crate::clickhouse::Store;
use crate::pipeline::batch::Limits;
use crate::pipeline::log::Log;
use crate::upkeep::{Schedule, UpkeepStore};

/// The consumer group, without the deployment's prefix.
pub const GROUP: &str = "hopline-processor";

/// The settings of the process and of the operators' commands.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Address for operators: /healthz, /readyz, /metrics.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "HOPLINE_PROCESSOR_OPERATIONS_LISTEN",
        default_value = "127.0.0.1:9102"
    )]
    pub operations_listen: SocketAddr,

    /// Directory with the lists of crawlers and browsers, for `recount`: crawler-user-agents.json, uap-core.json.
    #[arg(long, value_name = "DIRECTORY", env = "HOPLINE_DATA_DIR")]
    pub data_dir: Option<PathBuf>,

    /// The consumer group: one per deployment, so it is not configurable.
    #[arg(skip = GROUP)]
    pub group: &'static str,

    /// Limits of a batch.
    #[arg(skip)]
    pub batch: Limits,

    /// Seconds between two purges of deleted links' rows, 1 to 3600.
    #[arg(long, value_name = "SECONDS", env = "HOPLINE_PURGE_SECONDS", default_value = "600",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub purge_seconds: u64,

    /// Seconds that every partition must be past the end of a broker's day before the day's rollups are
    /// computed, 1 to 43200.
    #[arg(long, value_name = "SECONDS", env = "HOPLINE_SLICE_DELAY_SECONDS", default_value = "600",
          value_parser = clap::value_parser!(u64).range(1..=43_200))]
    pub slice_delay_seconds: u64,

    /// Hours between two audits, which one processor runs by itself, up to 8760; 0 runs none. An audit reads all clicks
    /// that Kafka holds.
    #[arg(long, value_name = "HOURS", env = "HOPLINE_AUDIT_HOURS", default_value = "24",
          value_parser = clap::value_parser!(u64).range(..=8_760))]
    pub audit_hours: u64,

    /// How often upkeep checks what is due; tests shorten it.
    #[arg(skip = Schedule::default().look)]
    pub upkeep_look: Duration,

    /// How long former versions of rollups may still be read, longer than any query; tests shorten it.
    #[arg(skip = Schedule::default().read_on)]
    pub read_on: Duration,

    /// Where Kafka is.
    #[command(flatten)]
    pub kafka: KafkaConfig,

    /// Where ClickHouse is.
    #[command(flatten)]
    pub clickhouse: ClickhouseConfig,

    /// Traces of clicks.
    #[command(flatten)]
    pub traces: TraceConfig,

    /// Logs and the end of the process.
    #[command(flatten)]
    pub process: Settings,
}

impl Config {
    /// Returns the schedule of upkeep.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            look: self.upkeep_look,
            slice_delay: Duration::from_secs(self.slice_delay_seconds),
            purge: Duration::from_secs(self.purge_seconds),
            read_on: self.read_on,
            ..Schedule::default()
        }
    }

    /// Creates a client for the topic of clicks.
    ///
    /// # Errors
    /// When librdkafka rejects the settings.
    pub(crate) fn log(&self) -> Result<Log, KafkaError> {
        Log::new(&self.kafka, &self.kafka.topic(topic::CLICKS.name), &self.kafka.topic(self.group))
    }

    /// Creates a client for the tables of clicks; `name` identifies this process among their owners.
    pub(crate) fn store(&self, name: &str) -> Store {
        Store::new(Clickhouse::new(&self.clickhouse), format!("{name} {}", process::id()))
    }

    /// Creates a client for the tables of upkeep.
    pub(crate) fn upkeep_store(&self) -> UpkeepStore {
        UpkeepStore::new(Clickhouse::new(&self.clickhouse))
    }
}
