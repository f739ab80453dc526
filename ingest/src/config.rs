//! The edge's configuration.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::ArgAction;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use service::config::{Cidrs, Key, KeyRing};
use service::http::Limits;
use service::kafka::KafkaConfig;
use service::postgres::DatabaseUrl;
use service::process::{Program, Settings};
use service::traces::TraceConfig;

use crate::spool;
use crate::visitor::Rotation;

/// Answers short links and publishes their clicks.
#[derive(Debug, Clone, clap::Parser)]
#[command(
    name = "ingest",
    version,
    after_help = "Commands:\n  ingest spool    Shows the content of a spool; see ingest spool --help"
)]
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

    /// Proxies whose Forwarded and X-Forwarded-For headers are trusted, as networks such as 10.0.0.0/8.
    #[arg(long, value_name = "NETWORKS", env = "HOPLINE_TRUSTED_PROXIES", default_value = "")]
    pub trusted_proxies: Cidrs,

    /// Keys of click ids as id:64 hex digits[,id:...]. The first key signs, all verify.
    #[arg(long, value_name = "KEYS", env = "HOPLINE_CLICK_ID_KEYS", hide_env_values = true)]
    pub click_id_keys: KeyRing,

    /// Time from which the first key signs clicks of external edges, as RFC 3339. The last key signs earlier clicks,
    /// and all clicks without this setting. Before you remove the last key, set this to a time in the future.
    #[arg(long, value_name = "TIME", env = "HOPLINE_CLICK_ID_KEY_SINCE", value_parser = schemas::time::parse)]
    pub click_id_key_since: Option<DateTime<Utc>>,

    /// Key that derives visitors from client addresses: 64 hex digits. With a new key, every visitor counts as new.
    #[arg(long, value_name = "KEY", env = "HOPLINE_VISITOR_KEY", hide_env_values = true)]
    pub visitor_key: Key,

    /// How long a visitor stays the same. Afterwards every visitor counts as new, so a time window across the change
    /// counts a person twice.
    #[arg(
        long,
        value_name = "PERIOD",
        env = "HOPLINE_VISITOR_KEY_ROTATION",
        default_value = "never",
        value_enum
    )]
    pub visitor_key_rotation: Rotation,

    /// Whether a click with Sec-GPC: 1 or DNT: 1 is stored without country, User-Agent and external click id, and
    /// with a random visitor.
    #[arg(
        long,
        value_name = "SWITCH",
        env = "HOPLINE_RESPECT_PRIVACY_SIGNALS",
        default_value = "off",
        value_parser = PossibleValuesParser::new(["on", "off"]).map(|switch| switch == "on"),
        action = ArgAction::Set
    )]
    pub respect_privacy_signals: bool,

    /// Clicks of one client address (of an IPv6 /64 network) per minute that count by their class; further ones
    /// redirect and count as those of a bot. 0 is no limit.
    #[arg(long, value_name = "COUNT", env = "HOPLINE_CLICKS_PER_MINUTE", default_value = "6000")]
    pub clicks_per_minute: u32,

    /// Directory with the lists of countries, crawlers and browsers: country.mmdb, crawler-user-agents.json,
    /// uap-core.json. Without it, clicks have no country, and only common crawlers and browsers are recognized.
    #[arg(long, value_name = "DIRECTORY", env = "HOPLINE_DATA_DIR")]
    pub data_dir: Option<PathBuf>,

    /// Country file in MaxMind's format, reloaded when it changes. Default: country.mmdb in HOPLINE_DATA_DIR.
    #[arg(long, value_name = "FILE", env = "HOPLINE_COUNTRY_FILE")]
    pub country_file: Option<PathBuf>,

    /// Directory that stores clicks until Kafka has them. It must be on a disk that survives a restart, and only one
    /// edge may use it.
    #[arg(
        long,
        value_name = "DIRECTORY",
        env = "HOPLINE_SPOOL_DIR",
        default_value = "/var/lib/hopline/spool"
    )]
    pub spool_dir: PathBuf,

    /// Maximum size of the spool on the disk: 1048576 or more. When it is reached, further clicks are dropped and
    /// counted. Default: 4 GiB, or a fifth of the space that is free at the start if that is less.
    #[arg(
        long,
        value_name = "BYTES",
        env = "HOPLINE_SPOOL_MAX_BYTES",
        value_parser = clap::value_parser!(u64).range(spool::MIN_BYTES..)
    )]
    pub spool_max_bytes: Option<u64>,

    /// How often clicks are synced to the disk, 1 to 60000. A power loss loses the clicks since the last sync; a
    /// crash of the process loses none.
    #[arg(
        long,
        value_name = "MILLISECONDS",
        env = "HOPLINE_SPOOL_SYNC_MILLISECONDS",
        default_value = "50",
        value_parser = clap::value_parser!(u32).range(1..=60_000)
    )]
    pub spool_sync_milliseconds: u32,

    /// File that stores the links for a start without Kafka. Default: links.snapshot in the spool's directory.
    #[arg(long, value_name = "FILE", env = "HOPLINE_SNAPSHOT_FILE")]
    pub snapshot_file: Option<PathBuf>,

    /// Minimum seconds between two link snapshots. A snapshot is written when links have changed.
    #[arg(
        long = "snapshot-seconds",
        value_name = "SECONDS",
        env = "HOPLINE_SNAPSHOT_SECONDS",
        default_value = "60",
        value_parser = service::config::seconds
    )]
    pub snapshot_interval: Duration,

    /// Postgres for looking up new links that have not arrived through topic links, as
    /// postgres://user:password@host:port/database. The user needs only SELECT on table links. Without it, a new link
    /// answers 404 until it arrives.
    #[arg(
        long = "lookup-database-url",
        value_name = "URL",
        env = "HOPLINE_LOOKUP_DATABASE_URL",
        hide_env_values = true
    )]
    pub lookup_database: Option<DatabaseUrl>,

    /// The connection to Kafka.
    #[command(flatten)]
    pub kafka: KafkaConfig,

    /// Limits of connections.
    #[command(flatten)]
    pub limits: Limits,

    /// Traces of clicks.
    #[command(flatten)]
    pub traces: TraceConfig,

    /// Logging and shutdown.
    #[command(flatten)]
    pub process: Settings,
}

impl Program for Config {
    fn settings(&self) -> &Settings {
        &self.process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_listed() {
        service::config::assert_listed::<Config>();
    }
}
