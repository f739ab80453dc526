//! librdkafka properties from `KAFKA_CONFIG_` variables.

use std::collections::BTreeMap;
use std::ffi::OsString;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use super::fault::Fault;

/// The variable with the addresses of the brokers.
pub(crate) const BROKERS: &str = "KAFKA_BROKERS";

/// Prefix of the variables that set a librdkafka property, with underscores for dots.
const PROPERTY_PREFIX: &str = "KAFKA_CONFIG_";

/// Returns the librdkafka properties among the variables.
pub(crate) fn properties(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> BTreeMap<String, String> {
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

/// Returns the faults of the `KAFKA_CONFIG_` variables; librdkafka validates each separately.
pub(super) fn property_faults(variables: &BTreeMap<OsString, OsString>) -> Vec<Fault> {
    variables
        .iter()
        .filter_map(|(variable, value)| {
            let variable = variable.to_string_lossy();
            let property = property(&variable)?;
            let Some(value) = value.to_str() else {
                return Some(Fault::new(&*variable, "the value is not valid UTF-8"));
            };
            let error = ClientConfig::new().set(&property, value).create_native_config().err()?;
            // librdkafka's reason contains the property's name and may contain its value.
            let message = match error {
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

    #[test]
    fn each_property_is_validated_by_librdkafka() {
        let variables = [
            ("KAFKA_CONFIG_SECURITY_PROTOCOL", "sasl_ssl"),
            ("KAFKA_CONFIG_LINGER_MS", "soon"),
            ("KAFKA_CONFIG_COLOUR", "red"),
        ];
        let faults = property_faults(&variables.map(|(name, value)| (name.into(), value.into())).into());
        let named: Vec<&str> = faults.iter().map(|fault| fault.variable.as_str()).collect();
        assert_eq!(named, ["KAFKA_CONFIG_COLOUR", "KAFKA_CONFIG_LINGER_MS"]);
        assert!(faults[0].message.contains("colour"), "{faults:?}");
    }
}
