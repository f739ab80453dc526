//! librdkafka properties from `KAFKA_CONFIG_` variables.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use super::fault::Fault;
use super::secret_file;

/// The variable with the addresses of the brokers.
pub(crate) const BROKERS: &str = "KAFKA_BROKERS";

/// Prefix of the variables that set a librdkafka property, with underscores for dots.
const PROPERTY_PREFIX: &str = "KAFKA_CONFIG_";

/// The properties that are secrets, which may be in a file.
const SECRETS: [&str; 8] = [
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret",
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
];

/// Returns the librdkafka properties among the variables, without those that [`property_faults`] names.
pub(crate) fn properties(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> BTreeMap<String, String> {
    variables
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .filter_map(|(name, value)| setting(name.to_str()?, &value)?.ok())
        .collect()
}

/// Returns the property that a variable sets with its value, or why there is none.
fn setting(variable: &str, value: &OsStr) -> Option<Result<(String, String), String>> {
    let name = variable.strip_prefix(PROPERTY_PREFIX)?;
    let property = name.to_ascii_lowercase().replace('_', ".");
    let in_file = property.strip_suffix(".file").filter(|secret| SECRETS.contains(secret));
    Some(match (in_file, value.to_str()) {
        (Some(secret), _) => secret_file::read(value).map(|content| (secret.to_owned(), content)),
        (None, Some(value)) => Ok((property, value.to_owned())),
        (None, None) => Err("the value is not valid UTF-8".to_owned()),
    })
}

/// Returns the faults of the `KAFKA_CONFIG_` variables; librdkafka validates each separately.
pub(super) fn property_faults(variables: &BTreeMap<OsString, OsString>) -> Vec<Fault> {
    variables
        .iter()
        .filter_map(|(variable, value)| {
            let variable = variable.to_string_lossy();
            let (property, value) = match setting(&variable, value)? {
                Ok(setting) => setting,
                Err(message) => return Some(Fault::new(&*variable, message)),
            };
            if SECRETS.contains(&&*property) && secret_file::of(&variable, variables).is_some() {
                return Some(secret_file::set_twice(&variable));
            }
            let error = ClientConfig::new().set(&property, &value).create_native_config().err()?;
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
    use std::fs;

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

    #[test]
    fn a_password_may_be_in_a_file() {
        let path = std::env::temp_dir().join(format!("hopline-kafka-password-{}", std::process::id()));
        let file = path.to_str().unwrap();
        let read = |variables: &[(&str, &str)]| {
            let variables: BTreeMap<OsString, OsString> =
                variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
            let faults = property_faults(&variables).into_iter();
            let messages: Vec<_> =
                faults.map(|fault| format!("{}: {}", fault.variable, fault.message)).collect();
            (properties(variables), messages.join(", "))
        };
        let variable = ("KAFKA_CONFIG_SASL_PASSWORD_FILE", file);
        fs::write(&path, "drawn\n").unwrap();
        let given = read(&[variable]);
        let both = read(&[variable, ("KAFKA_CONFIG_SASL_PASSWORD", "typed")]);
        let no_secret = read(&[("KAFKA_CONFIG_SASL_USERNAME_FILE", file)]);
        fs::write(&path, "\n").unwrap();
        let empty = read(&[variable]);
        fs::remove_file(&path).unwrap();
        let missing = read(&[variable]);

        assert_eq!(given, ([("sasl.password".to_owned(), "drawn".to_owned())].into(), String::new()));
        let together = "set together with KAFKA_CONFIG_SASL_PASSWORD_FILE; keep one of them";
        assert_eq!(both.1, format!("KAFKA_CONFIG_SASL_PASSWORD: {together}"));
        assert!(no_secret.1.contains("sasl.username.file"), "{no_secret:?}");
        assert_eq!(empty, (BTreeMap::new(), format!("KAFKA_CONFIG_SASL_PASSWORD_FILE: {file} is empty")));
        assert!(missing.1.contains(&format!("cannot read {file}: ")), "{missing:?}");
    }
}
