//! What the processor is told by its environment.

use std::net::SocketAddr;

use service::{clickhouse::ClickhouseConfig, kafka::KafkaConfig, process::Settings};

use crate::batch::Limits;

/// The consumer group, without the deployment's prefix.
pub const GROUP: &str = "hopline-processor";

/// Turns clicks on the topic into ClickHouse rows, exactly once.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "processor", version)]
pub struct Config {
    /// Address for operators: /healthz, /readyz, /metrics.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "HOPLINE_PROCESSOR_OPERATIONS_LISTEN",
        default_value = "127.0.0.1:9102"
    )]
    pub operations_listen: SocketAddr,

    /// The consumer group: one per deployment, so not for its environment to say.
    #[arg(skip = GROUP)]
    pub group: &'static str,

    /// When batches are cut.
    #[arg(skip)]
    pub batch: Limits,

    /// Where Kafka is.
    #[command(flatten)]
    pub kafka: KafkaConfig,

    /// Where ClickHouse is.
    #[command(flatten)]
    pub clickhouse: ClickhouseConfig,

    /// Logs and the end of the process.
    #[command(flatten)]
    pub process: Settings,
}

impl AsRef<Settings> for Config {
    fn as_ref(&self) -> &Settings {
        &self.process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_one_that_all_processes_accept() {
        service::config::assert_listed::<Config>();
    }
}
