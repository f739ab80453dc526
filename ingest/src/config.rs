//! What the edge is told by its environment.

use std::{net::SocketAddr, path::PathBuf};

use service::{
    config::{Cidrs, Key, KeyRing},
    http::Limits,
    kafka::KafkaConfig,
    process::Settings,
};

/// Answers short links and publishes their clicks.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "ingest", version)]
pub struct Config {
    /// Address for visitors.
    #[arg(long, value_name = "ADDRESS", env = "HOPLINE_EDGE_LISTEN", default_value = "0.0.0.0:8081")]
    pub listen: SocketAddr,

    /// Address for operators: /healthz, /readyz, /metrics.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "HOPLINE_INGEST_OPERATIONS_LISTEN",
        default_value = "127.0.0.1:9101"
    )]
    pub operations_listen: SocketAddr,

    /// Proxies whose Forwarded and X-Forwarded-For headers are believed, as networks such as 10.0.0.0/8.
    #[arg(long, value_name = "NETWORKS", env = "HOPLINE_TRUSTED_PROXIES", default_value = "")]
    pub trusted_proxies: Cidrs,

    /// Keys of click ids as id:64 hex digits[,id:...]; the first signs, all verify.
    #[arg(long, value_name = "KEYS", env = "HOPLINE_CLICK_ID_KEYS", hide_env_values = true)]
    pub click_id_keys: KeyRing,

    /// Key that turns client addresses into visitors: 64 hex digits. A new one makes every visitor a new one.
    #[arg(long, value_name = "KEY", env = "HOPLINE_VISITOR_KEY", hide_env_values = true)]
    pub visitor_key: Key,

    /// Directory that keeps clicks until Kafka has them; on a disk that survives a restart, for this edge alone.
    #[arg(
        long,
        value_name = "DIRECTORY",
        env = "HOPLINE_SPOOL_DIR",
        default_value = "/var/lib/hopline/spool"
    )]
    pub spool_dir: PathBuf,

    /// Where Kafka is.
    #[command(flatten)]
    pub kafka: KafkaConfig,

    /// What connections are granted.
    #[command(flatten)]
    pub limits: Limits,

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
