//! Which brokers, and with which settings.

use std::{collections::BTreeMap, ffi::OsString, fmt};

use rdkafka::{ClientConfig, config::RDKafkaLogLevel, error::KafkaError};

use crate::config::Fault;

/// The variable that names the brokers.
pub(crate) const BROKERS: &str = "KAFKA_BROKERS";

/// Any librdkafka property passes through behind this, with underscores for dots.
const PROPERTY_PREFIX: &str = "KAFKA_CONFIG_";

/// Where Kafka is; flatten it into the service's `Config`.
///
/// Besides its arguments it reads each `KAFKA_CONFIG_<property>` of the environment, such as
/// `KAFKA_CONFIG_SASL_MECHANISM` for `sasl.mechanism`.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Kafka")]
pub struct KafkaConfig {
    /// Brokers to start from, as host:port[,host:port].
    #[arg(long = "kafka-brokers", value_name = "BROKERS", env = BROKERS, value_parser = brokers)]
    brokers: String,

    /// What stands before every topic name and consumer group, such as `dev.`.
    #[arg(long, value_name = "PREFIX", env = "HOPLINE_TOPIC_PREFIX", default_value = "", value_parser = prefix)]
    topic_prefix: String,

    #[arg(skip = properties(std::env::vars_os()))]
    properties: BTreeMap<String, String>,
}

impl KafkaConfig {
    /// Makes a configuration by hand; for tests.
    pub fn new(brokers: impl Into<String>, topic_prefix: impl Into<String>) -> Self {
        Self { brokers: brokers.into(), topic_prefix: topic_prefix.into(), properties: BTreeMap::new() }
    }

    /// Returns the settings of a client; `client_id` is its name in the brokers' logs, metrics and quotas.
    ///
    /// What a role needs (acks, group, transactions) is set on top, and so wins over the environment.
    #[must_use]
    pub fn client_config(&self, client_id: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("client.id", client_id)
            // Brokers close idle connections as a matter of course.
            .set("log.connection.close", "false")
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.max.ms", "2000");
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers).set_log_level(RDKafkaLogLevel::Warning);
        config
    }

    /// Returns the full name of a topic, or of a consumer group, with the deployment's prefix.
    #[must_use]
    pub fn topic(&self, name: &str) -> String {
        format!("{}{name}", self.topic_prefix)
    }

    /// Returns the brokers as configured.
    #[must_use]
    pub fn brokers(&self) -> &str {
        &self.brokers
    }
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("KafkaConfig")
            .field("brokers", &self.brokers)
            .field("topic_prefix", &self.topic_prefix)
            // Names only: among the values are passwords.
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
        // Our topics have dots, and Kafka takes names that differ in . and _ only for the same metric.
        Err("expected at most 100 of [A-Za-z0-9.-]".to_owned())
    }
}

/// Returns the librdkafka properties among the variables.
fn properties(variables: impl IntoIterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    variables
        .into_iter()
        .filter_map(|(name, value)| {
            let property = property(name.to_str()?)?;
            let value = value.into_string().ok()?;
            (!value.is_empty()).then_some((property, value))
        })
        .collect()
}

fn property(variable: &str) -> Option<String> {
    let name = variable.strip_prefix(PROPERTY_PREFIX)?;
    Some(name.to_ascii_lowercase().replace('_', "."))
}

/// Returns the faults of the `KAFKA_CONFIG_` variables, each asked of librdkafka alone.
pub(crate) fn property_faults(variables: &BTreeMap<OsString, OsString>) -> Vec<Fault> {
    variables
        .iter()
        .filter_map(|(variable, value)| {
            let variable = variable.to_string_lossy();
            let property = property(&variable)?;
            let Some(value) = value.to_str() else {
                return Some(Fault::new(&*variable, "not readable"));
            };
            let refused = ClientConfig::new().set(&property, value).create_native_config().err()?;
            // librdkafka's text names the property and may quote the value.
            let message = match refused {
                KafkaError::ClientConfig(_, reason, _, _) if !is_secret(&property) => reason,
                _ => "invalid value (not shown)".to_owned(),
            };
            Some(Fault::new(&*variable, message))
        })
        .collect()
}

fn is_secret(property: &str) -> bool {
    ["password", "secret", "key", "jaas", "token", "config"].iter().any(|word| property.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn variables_become_properties_and_ours_win() {
        let mut config = KafkaConfig::new("a:1,b:2", "dev.");
        config.properties = properties(variables(&[
            ("KAFKA_CONFIG_SASL_PASSWORD", "hunter2"),
            ("KAFKA_CONFIG_BOOTSTRAP_SERVERS", "elsewhere:1"),
            ("KAFKA_CONFIG_LINGER_MS", ""),
            ("KAFKA_BROKERS", "ignored:1"),
        ]));
        let client = config.client_config("test");
        assert_eq!(client.get("sasl.password"), Some("hunter2"));
        assert_eq!(client.get("bootstrap.servers"), Some("a:1,b:2"));
        assert_eq!(client.get("linger.ms"), None);
        assert_eq!(config.topic("clicks"), "dev.clicks");
        assert!(client.create_native_config().is_ok());
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn librdkafka_judges_each_property() {
        let faults = property_faults(&variables(&[
            ("KAFKA_CONFIG_SECURITY_PROTOCOL", "sasl_ssl"),
            ("KAFKA_CONFIG_LINGER_MS", "soon"),
            ("KAFKA_CONFIG_COLOUR", "red"),
        ]));
        let named: Vec<&str> = faults.iter().map(|fault| fault.variable.as_str()).collect();
        assert_eq!(named, ["KAFKA_CONFIG_COLOUR", "KAFKA_CONFIG_LINGER_MS"]);
        assert!(faults[0].message.contains("colour"), "{faults:?}");
    }

    #[test]
    fn malformed_brokers_and_prefixes_are_refused() {
        assert!(brokers("a:9092,[::1]:9092").is_ok());
        for refused in ["", "a", "a:", ":1", "a:1,", "a:99999"] {
            assert!(brokers(refused).is_err(), "{refused}");
        }
        assert!(prefix("").is_ok() && prefix("dev.").is_ok());
        assert!(prefix("dev_").is_err() && prefix("a b").is_err());
    }
}
