//! The API's settings, from the environment.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use service::clickhouse::ClickhouseConfig;
use service::config::{Cidrs, KeyRing};
use service::http::Limits;
use service::kafka::KafkaConfig;
use service::postgres::PostgresConfig;
use service::process::{Program, Settings};
use url::Url;

use crate::admin::Admin;
use crate::app::CountrySource;
use crate::plan::Plans;
use crate::store::grants::Engine;

/// Hopline's management API: links, conversions, webhook endpoints, counts.
///
/// Without a command it serves until SIGTERM. Settings come from the environment.
#[derive(Debug, Clone, Parser)]
#[command(name = "api", version)]
pub struct Config {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Logs and shutdown.
    #[command(flatten)]
    pub settings: Settings,

    /// Kafka.
    #[command(flatten)]
    pub kafka: KafkaConfig,

    /// Postgres.
    #[command(flatten)]
    pub postgres: PostgresConfig,

    /// ClickHouse.
    #[command(flatten)]
    pub clickhouse: ClickhouseConfig,

    /// Connections.
    #[command(flatten)]
    pub limits: Limits,

    /// Where the API listens.
    #[arg(long, value_name = "ADDRESS", env = "HOPLINE_API_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,

    /// Where /healthz, /readyz and /metrics are.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "HOPLINE_API_OPERATIONS_LISTEN",
        default_value = "127.0.0.1:9103"
    )]
    pub operations_listen: SocketAddr,

    /// The base of short links as visitors see it: http or https, host and port.
    #[arg(long, value_name = "URL", env = "HOPLINE_PUBLIC_URL", value_parser = parse_public_url)]
    pub public_url: Url,

    /// Address of the dashboard for browsers, if it differs from the requested host: http or https, host and port.
    #[arg(long, value_name = "URL", env = "HOPLINE_DASHBOARD_URL", value_parser = parse_public_url)]
    pub dashboard_url: Option<Url>,

    /// Keys of click ids as id:64 hex digits; the first signs, all verify.
    #[arg(long, value_name = "KEYS", env = "HOPLINE_CLICK_ID_KEYS", hide_env_values = true)]
    pub click_id_keys: KeyRing,

    /// Keys that seal webhook secrets: id:64 hex digits, the first seals, all open.
    #[arg(long, value_name = "KEYS", env = "HOPLINE_SECRET_KEYS", hide_env_values = true)]
    pub secret_keys: KeyRing,

    /// Requests that one client address may make in a minute without a valid key, conversions included. The first
    /// request of a key at an instance counts as well.
    #[arg(long, value_name = "COUNT", env = "HOPLINE_ADDRESS_REQUESTS_PER_MINUTE", default_value = "600")]
    pub address_requests_per_minute: NonZeroU32,

    /// Networks of proxies whose forwarded client address is believed.
    #[arg(long, value_name = "CIDRS", env = "HOPLINE_TRUSTED_PROXIES", default_value = "")]
    pub trusted_proxies: Cidrs,

    /// Seconds that statistics, a page of clicks, or a batch of an export may take before they answer 503.
    #[arg(long = "stats-timeout-seconds", value_name = "SECONDS", env = "HOPLINE_STATS_TIMEOUT_SECONDS",
          default_value = "10", value_parser = service::config::seconds)]
    pub stats_timeout: Duration,

    /// How long an operation on links waits for counters before it answers without them: 2 s, and longer in tests on a
    /// busy machine.
    #[arg(skip = Duration::from_secs(2))]
    pub counters_timeout: Duration,

    /// Concurrent ClickHouse requests of one workspace, for counters and for statistics each.
    #[arg(long, value_name = "COUNT", env = "HOPLINE_QUERIES_PER_WORKSPACE", default_value = "4")]
    pub queries_per_workspace: NonZeroUsize,

    /// Source of the edges' country file. DB-IP's licence requires a link beside countries. By default db-ip if the
    /// edges have a directory of lists, and other if they have a separate country file.
    #[arg(long, value_name = "SOURCE", env = "HOPLINE_COUNTRY_SOURCE", value_enum)]
    pub country_source: Option<CountrySource>,

    /// The edges' directory of lists; the API only checks whether it is set.
    #[arg(long, value_name = "DIRECTORY", env = "HOPLINE_DATA_DIR")]
    pub data_dir: Option<PathBuf>,

    /// The edges' country file; the API only checks whether it is set.
    #[arg(long, value_name = "FILE", env = "HOPLINE_COUNTRY_FILE")]
    pub country_file: Option<PathBuf>,

    /// File that replaces the built-in limits of the plans, in the form of `api/plans.json`.
    #[arg(long = "plans-file", value_name = "PATH", env = "HOPLINE_PLANS_FILE", value_parser = Plans::read)]
    pub plans: Option<Plans>,

    /// Private networks that webhook endpoints may be in, also without TLS.
    #[arg(long, value_name = "CIDRS", env = "HOPLINE_WEBHOOK_ALLOW", default_value = "")]
    pub webhook_allow: Cidrs,
}

impl Program for Config {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn is_command(&self) -> bool {
        self.command.is_some()
    }
}

impl Config {
    /// Returns the source of the edges' country data.
    #[must_use]
    pub fn country_source(&self) -> CountrySource {
        self.country_source.unwrap_or(match (&self.data_dir, &self.country_file) {
            (Some(_), None) => CountrySource::DbIp,
            _ => CountrySource::Other,
        })
    }
}

/// A command instead of serving.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Creates or updates the schemas of Postgres and ClickHouse and the topics; safe to run again.
    ///
    /// The Postgres roles hopline_api, hopline_dispatcher and hopline_ingest, where they exist, get exactly the rights
    /// that they need.
    #[command(after_help = "\
Examples:
  api migrate --plan
  api migrate
  api migrate --print-grants=clickhouse
  api migrate --add-acls
  api migrate --partitions 12
  api migrate --replace-replica ch2.example.com:8443")]
    Migrate {
        /// Print what would change instead.
        #[arg(long, conflicts_with = "print_grants")]
        plan: bool,
        /// Print the least privileges of each program's user instead, on one engine or on all.
        #[arg(long, value_name = "ENGINE", num_args = 0..=1, require_equals = true)]
        print_grants: Option<Option<Engine>>,
        /// Give the programs' users their rights in Kafka, too, those that `--print-grants=kafka` names, as an
        /// administrator of Kafka.
        #[arg(long, conflicts_with_all = ["plan", "print_grants"])]
        add_acls: bool,
        /// Increase the partitions of topic `clicks` to this number, so that more processors can share its clicks.
        #[arg(long, value_name = "COUNT", conflicts_with_all = ["plan", "print_grants"])]
        partitions: Option<u16>,
        /// Recreate a replica of ClickHouse that has lost its data, named as in CLICKHOUSE_URL.
        #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["plan", "print_grants"])]
        replace_replica: Option<String>,
    },
    /// Operators' commands: accounts, members, workspaces, keys, plans, webhook endpoints.
    #[command(
        override_usage = "api admin [OPTIONS] <COMMAND>",
        after_help = "\
Example: api admin create-account --name \"Corner shop\" --plan business

Settings come from the environment, as for the API itself. `api admin <COMMAND> --help` has an example of each command."
    )]
    Admin(Admin),
}

/// Parses a base URL that has only scheme, host and port.
fn parse_public_url(text: &str) -> Result<Url, String> {
    let url =
        Url::parse(text).map_err(|error| format!("{error}; write for example https://go.example.com"))?;
    if !matches!(url.scheme(), "http" | "https") || url.path() != "/" || url.query().is_some() {
        return Err("must be http:// or https:// and a host, without a path".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_listed() {
        service::config::assert_listed::<Config>();
    }

    #[test]
    fn the_public_url_is_a_scheme_and_a_host() {
        assert!(parse_public_url("https://go.example").is_ok());
        assert!(parse_public_url("http://127.0.0.1:8081/").is_ok());
        for bad in ["go.example", "ftp://go.example", "https://go.example/x", "https://go.example?x"] {
            assert!(parse_public_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn db_ip_is_the_default_country_source() {
        let source = |arguments: &[&str]| {
            let keys = ["11", "22"].map(|byte| format!("1:{}", byte.repeat(32)));
            let needed = [
                "api",
                "--kafka-brokers",
                "127.0.0.1:1",
                "--database-url",
                "postgres://a@127.0.0.1/a",
                "--clickhouse-url",
                "http://127.0.0.1/a",
                "--public-url",
                "https://go.example",
                "--click-id-keys",
                &keys[0],
                "--secret-keys",
                &keys[1],
            ];
            Config::parse_from(needed.iter().chain(arguments)).country_source()
        };
        assert_eq!(source(&["--data-dir", "lists"]), CountrySource::DbIp);
        assert_eq!(source(&["--country-file", "a.mmdb", "--data-dir", "lists"]), CountrySource::Other);
        assert_eq!(source(&["--country-file", "a.mmdb", "--country-source", "db-ip"]), CountrySource::DbIp);
        assert_eq!(source(&["--data-dir", "lists", "--country-source", "other"]), CountrySource::Other);
        assert_eq!(source(&[]), CountrySource::Other);
    }
}
