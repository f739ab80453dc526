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
use service::process::Settings;

use crate::spool;
use crate::visitor::Rotation;

/// Answers short links and publishes their clicks.
#[derive(Debug, Clone, clap::Parser)]
#[command(
    name = "ingest",
    version,
    after_help = "Commands:\n  ingest spool    Shows what is in a spool; see ingest spool --help"
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

    /// Proxies whose Forwarded and X-Forwarded-For headers are believed, as networks such as 10.0.0.0/8.
    #[arg(long, value_name = "NETWORKS", env = "HOPLINE_TRUSTED_PROXIES", default_value = "")]
    pub trusted_proxies: Cidrs,

    /// Keys of click ids as id:64 hex digits[,id:...]; the first signs, all verify.
    #[arg(long, value_name = "KEYS", env = "HOPLINE_CLICK_ID_KEYS", hide_env_values = true)]
    pub click_id_keys: KeyRing,

    /// From when on clicks that other edges send are signed by the first key, as RFC 3339; before it, and without it,
    /// the last one signs them. Set it to a moment to come before the last key is removed.
    #[arg(long, value_name = "TIME", env = "HOPLINE_CLICK_ID_KEY_SINCE", value_parser = time)]
    pub click_id_key_since: Option<DateTime<Utc>>,

    /// Key that turns client addresses into visitors: 64 hex digits. A new one makes every visitor a new one.
    #[arg(long, value_name = "KEY", env = "HOPLINE_VISITOR_KEY", hide_env_values = true)]
    pub visitor_key: Key,

    /// How long visitors stay the same: then all become new ones, and windows that reach across count them again.
    #[arg(
        long,
        value_name = "PERIOD",
        env = "HOPLINE_VISITOR_KEY_ROTATION",
        default_value = "never",
        value_enum
    )]
    pub visitor_key_rotation: Rotation,

    /// Whether a click with Sec-GPC: 1 or DNT: 1 is kept without visitor, country, User-Agent and the caller's click id.
    #[arg(
        long,
        value_name = "SWITCH",
        env = "HOPLINE_RESPECT_PRIVACY_SIGNALS",
        default_value = "off",
        value_parser = PossibleValuesParser::new(["on", "off"]).map(|switch| switch == "on"),
        action = ArgAction::Set
    )]
    pub respect_privacy_signals: bool,

    /// Directory of lists that tell countries, crawlers and browsers: country.mmdb, crawler-user-agents.json,
    /// uap-core.json. Without it clicks have no country, and only the common crawlers and browsers are known.
    #[arg(long, value_name = "DIRECTORY", env = "HOPLINE_DATA_DIR")]
    pub data_dir: Option<PathBuf>,

    /// File of countries in MaxMind's format, read again when it changes; country.mmdb in the directory of lists by
    /// default.
    #[arg(long, value_name = "FILE", env = "HOPLINE_COUNTRY_FILE")]
    pub country_file: Option<PathBuf>,

    /// Directory that keeps clicks until Kafka has them; on a disk that survives a restart, for this edge alone.
    #[arg(
        long,
        value_name = "DIRECTORY",
        env = "HOPLINE_SPOOL_DIR",
        default_value = "/var/lib/hopline/spool"
    )]
    pub spool_dir: PathBuf,

    /// How much of the disk the clicks may take that Kafka has not confirmed: 1048576 or more. When they take as
    /// much, further ones are dropped and counted. By default 4 GiB, or a fifth of what is free at the start if
    /// that is less.
    #[arg(
        long,
        value_name = "BYTES",
        env = "HOPLINE_SPOOL_MAX_BYTES",
        value_parser = clap::value_parser!(u64).range(spool::MIN_BYTES..)
    )]
    pub spool_max_bytes: Option<u64>,

    /// How often clicks are brought onto the disk, 1 to 60000: what a power loss of this machine can cost. The end
    /// of the process alone costs none.
    #[arg(
        long,
        value_name = "MILLISECONDS",
        env = "HOPLINE_SPOOL_SYNC_MILLISECONDS",
        default_value = "50",
        value_parser = clap::value_parser!(u32).range(1..=60_000)
    )]
    pub spool_sync_milliseconds: u32,

    /// File that keeps the links for a start without Kafka; links.snapshot in the spool's directory by default.
    #[arg(long, value_name = "FILE", env = "HOPLINE_SNAPSHOT_FILE")]
    pub snapshot_file: Option<PathBuf>,

    /// Least seconds from one writing of that file to the next; it is written when links have changed.
    #[arg(
        long = "snapshot-seconds",
        value_name = "SECONDS",
        env = "HOPLINE_SNAPSHOT_SECONDS",
        default_value = "60",
        value_parser = service::config::seconds
    )]
    pub snapshot_interval: Duration,

    /// Postgres to ask for links that topic links has not told of yet, as postgres://user:password@host:port/database;
    /// the user needs SELECT on table links only. Without it such links are not found for a moment.
    #[arg(
        long = "lookup-database-url",
        value_name = "URL",
        env = "HOPLINE_LOOKUP_DATABASE_URL",
        hide_env_values = true
    )]
    pub lookup_database: Option<DatabaseUrl>,

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

/// Parses a time.
fn time(text: &str) -> Result<DateTime<Utc>, String> {
    DateTime::parse_from_rfc3339(text)
        .map(|time| time.to_utc())
        .map_err(|_| "expected RFC 3339, such as 2026-11-21T08:00:00Z".to_owned())
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
    fn every_variable_is_listed() {
        service::config::assert_listed::<Config>();
    }
}
