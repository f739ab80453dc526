//! The connection to Kafka.

use std::collections::BTreeMap;
use std::fmt;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use crate::config::{BROKERS, properties};

/// The brokers and the topic prefix; flatten it into the service's `Config`.
///
/// It also reads `KAFKA_CONFIG_<property>` variables, such as `KAFKA_CONFIG_SASL_MECHANISM` for `sasl.mechanism`.
/// Passwords may be in files: `KAFKA_CONFIG_SASL_PASSWORD_FILE`.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Kafka")]
pub struct KafkaConfig {
    /// Addresses of Kafka brokers, as host:port[,host:port].
    #[arg(long = "kafka-brokers", value_name = "BROKERS", env = BROKERS, value_parser = brokers)]
    brokers: String,

    /// Prefix of every topic name and consumer group, such as `dev.`.
    #[arg(long, value_name = "PREFIX", env = "HOPLINE_TOPIC_PREFIX", default_value = "", value_parser = prefix)]
    topic_prefix: String,

    /// Replicas of each topic, of which all but one have a record before it is acknowledged; without it, what the
    /// brokers do by default.
    #[arg(
        long, value_name = "COUNT", env = "HOPLINE_TOPIC_REPLICAS",
        value_parser = clap::value_parser!(u16).range(1..=10)
    )]
    pub topic_replicas: Option<u16>,

    #[arg(skip = properties(std::env::vars_os()))]
    properties: BTreeMap<String, String>,
}

impl KafkaConfig {
    /// Returns a configuration without additional properties, for tests.
    pub fn new(brokers: impl Into<String>, topic_prefix: impl Into<String>) -> Self {
        let (brokers, topic_prefix) = (brokers.into(), topic_prefix.into());
        Self { brokers, topic_prefix, topic_replicas: None, properties: BTreeMap::new() }
    }

    /// Returns the settings of a client; `client_id` is its name in the brokers' logs, metrics and quotas.
    ///
    /// Settings that the caller adds, such as acks or group, take precedence over the environment.
    #[must_use]
    pub fn client_config(&self, client_id: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("client.id", client_id)
            // Brokers close idle connections routinely.
            .set("log.connection.close", "false")
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.max.ms", "2000")
            // Partitions that were added are used after that time.
            .set("topic.metadata.refresh.interval.ms", "30000");
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers).set_log_level(RDKafkaLogLevel::Warning);
        config
    }

    /// Returns the full name of a topic or consumer group, with the deployment's prefix.
    #[must_use]
    pub fn topic(&self, name: &str) -> String {
        format!("{}{name}", self.topic_prefix)
    }
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("KafkaConfig")
            .field("brokers", &self.brokers)
            .field("topic_prefix", &self.topic_prefix)
            // Names only: values may be passwords.
            .field("properties", &self.properties.keys().collect::<Vec<_>>())
            .finish()
    }
}

fn brokers(text: &str) -> Result<String, String> {
    let is_broker = |broker: &str| {
        broker
            .trim()
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    if text.split(',').all(is_broker) {
        Ok(text.to_owned())
    } else {
        Err("expected host:port[,host:port]".to_owned())
    }
}

fn prefix(text: &str) -> Result<String, String> {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || ".-".contains(character);
    if text.len() <= 100 && text.chars().all(is_allowed) {
        Ok(text.to_owned())
    } else {
        // No underscores: Kafka treats topic names that differ only in `.` and `_` as colliding.
        Err("expected at most 100 of [A-Za-z0-9.-]".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_come_from_variables_except_the_brokers() {
        let mut config = KafkaConfig::new("a:1,b:2", "dev.");
        let variables = [
            ("KAFKA_CONFIG_SASL_PASSWORD", "hunter2"),
            ("KAFKA_CONFIG_BOOTSTRAP_SERVERS", "elsewhere:1"),
            ("KAFKA_CONFIG_LINGER_MS", ""),
            ("KAFKA_BROKERS", "ignored:1"),
        ];
        config.properties = properties(variables.map(|(name, value)| (name.into(), value.into())));
        let client = config.client_config("test");
        assert_eq!(client.get("sasl.password"), Some("hunter2"));
        assert_eq!(client.get("bootstrap.servers"), Some("a:1,b:2"));
        assert_eq!(client.get("linger.ms"), None);
        assert_eq!(config.topic("clicks"), "dev.clicks");
        assert!(client.create_native_config().is_ok());
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn malformed_brokers_and_prefixes_are_rejected() {
        assert!(brokers("a:9092,[::1]:9092").is_ok());
        for invalid in ["", "a", "a:", ":1", "a:1,", "a:99999"] {
            assert!(brokers(invalid).is_err(), "{invalid}");
        }
        assert!(prefix("").is_ok() && prefix("dev.").is_ok());
        assert!(prefix("dev_").is_err() && prefix("a b").is_err());
    }
}
