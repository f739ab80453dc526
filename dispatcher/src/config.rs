//! The configuration of the dispatcher.

use std::net::SocketAddr;
use std::time::Duration;

use service::config::{Cidrs, KeyRing};
use service::kafka::KafkaConfig;
use service::postgres::PostgresConfig;
use service::process;
use service::traces::TraceConfig;
use url::Url;

/// Fans events out to webhook endpoints, signs and delivers them.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "dispatcher", version)]
pub struct Config {
    /// Logs and the drain deadline.
    #[command(flatten)]
    pub process: process::Settings,

    /// Traces of deliveries.
    #[command(flatten)]
    pub traces: TraceConfig,

    /// Kafka, from which events are read.
    #[command(flatten)]
    pub kafka: KafkaConfig,

    /// Postgres, which stores endpoints and pending deliveries.
    #[command(flatten)]
    pub postgres: PostgresConfig,

    /// Where `/healthz`, `/readyz` and `/metrics` are served.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "HOPLINE_DISPATCHER_OPERATIONS_LISTEN",
        default_value = "127.0.0.1:9104"
    )]
    pub operations_listen: SocketAddr,

    /// Keys that open the endpoints' secrets, as id:key, more of them separated by commas, with keys of 64 hexadecimal
    /// digits.
    #[arg(long, value_name = "KEYS", env = "HOPLINE_SECRET_KEYS", hide_env_values = true)]
    pub secret_keys: KeyRing,

    /// Base of short links as visitors see it; webhooks never go there.
    #[arg(long, value_name = "URL", env = "HOPLINE_PUBLIC_URL")]
    pub public_url: Url,

    /// Networks that webhooks may go to although they are not public, over http and on any port too.
    #[arg(long, value_name = "CIDRS", env = "HOPLINE_WEBHOOK_ALLOW", default_value = "")]
    pub webhook_allow: Cidrs,

    /// Maximum deliveries that may wait for one endpoint; further ones are dropped, counted and shown on the endpoint.
    /// The endpoints of an account share ten times as many.
    #[arg(long, value_name = "COUNT", env = "HOPLINE_WEBHOOK_QUEUE_LIMIT", default_value = "100000",
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub webhook_queue_limit: u32,

    /// Maximum failed attempts of one endpoint whose response bodies are kept; ten times as many are kept without. The
    /// endpoints of an account share ten times as many.
    #[arg(long, value_name = "COUNT", env = "HOPLINE_WEBHOOK_FAILURE_LIMIT", default_value = "1000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub webhook_failure_limit: u32,

    /// Times and limits, which only tests change.
    #[arg(skip)]
    pub tuning: Tuning,
}

/// Times and limits of deliveries; the defaults are the specification's.
#[derive(Debug, Clone)]
pub struct Tuning {
    /// The wait after a delivery's first failed attempt; it doubles with each further one.
    pub retry_base: Duration,
    /// The timeout of one attempt: DNS, connection, TLS, headers and body together.
    pub attempt_deadline: Duration,
    /// How much longer a lease lasts than the attempt's timeout: half of this to wait for a permit, half to write the
    /// outcome.
    pub lease_margin: Duration,
    /// Maximum requests in flight to one endpoint.
    pub per_endpoint: usize,
    /// Maximum requests in flight to the endpoints of one account.
    pub per_account: usize,
    /// Maximum requests in flight of this process.
    pub per_process: usize,
    /// Maximum bytes of request bodies in memory.
    pub body_bytes: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            retry_base: Duration::from_secs(10),
            attempt_deadline: Duration::from_secs(15),
            lease_margin: Duration::from_secs(5),
            per_endpoint: 32,
            per_account: 128,
            per_process: 2048,
            body_bytes: 64 << 20,
        }
    }
}

impl process::Program for Config {
    fn settings(&self) -> &process::Settings {
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
