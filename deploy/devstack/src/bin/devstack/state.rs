//! Files that the stack keeps between starts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use devstack::{Error, random};
use schemas::grants::User;
use serde::{Deserialize, Serialize};

/// The file of [`State`].
pub(crate) const STATE: &str = "state.json";
/// The file of [`Secrets`].
pub(crate) const SECRETS: &str = "secrets.json";
/// The file of [`DemoAccount`].
pub(crate) const DEMO: &str = "demo.json";

/// The engines' ports and folders, which stay the same at the next start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// The ports of the engines, of the webhook receiver and, in a cluster, of the services, by name.
    pub(crate) ports: BTreeMap<String, u16>,
    /// Postgres's data folder when it is outside `.dev`; in a cluster, with that of each server in it.
    pub(crate) postgres_folder: Option<PathBuf>,
    /// The name of the server of Postgres that was promoted last, in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) postgres_primary: Option<String>,
    /// The `.dev` that owns `postgres_folder`: a copy of this file does not.
    pub(crate) owner: Option<PathBuf>,
}

impl State {
    /// Returns Postgres's data folder when it is outside a `.dev`; earlier versions stored one inside, too.
    pub(crate) fn outside_folder(&self) -> Option<PathBuf> {
        self.postgres_folder.clone().filter(|folder| !folder.ends_with(".dev/data/postgres"))
    }
}

/// The stack's keys and passwords, generated at its first start.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Secrets {
    /// The value of `HOPLINE_CLICK_ID_KEYS`.
    pub(crate) click_id_keys: String,
    /// The value of `HOPLINE_VISITOR_KEY`.
    pub(crate) visitor_key: String,
    /// The value of `HOPLINE_SECRET_KEYS`.
    pub(crate) secret_keys: String,
    /// The password of the engines' administrator.
    pub(crate) engine_password: String,
    /// The passwords of the users with the services' rights, which only a cluster has, by their names.
    #[serde(default)]
    pub(crate) users: BTreeMap<String, String>,
}

impl Secrets {
    /// Generates new secrets.
    pub(crate) fn generate() -> Result<Self, Error> {
        let password = |user: User| Ok((user.name().to_owned(), random::hex::<16>()?));
        Ok(Self {
            users: User::ALL.into_iter().map(password).collect::<Result<_, Error>>()?,
            click_id_keys: format!("1:{}", random::hex::<32>()?),
            visitor_key: random::hex::<32>()?,
            secret_keys: format!("1:{}", random::hex::<32>()?),
            engine_password: random::hex::<16>()?,
        })
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secrets")
    }
}

/// The account that the first start creates.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DemoAccount {
    pub(crate) account_id: String,
    pub(crate) workspace_id: String,
    /// Scope `read,write`, on the Business plan.
    pub(crate) api_key: String,
    /// Valid for the whole installation.
    pub(crate) edge_token: String,
    /// Signs the first owner up at the dashboard.
    #[serde(default)]
    pub(crate) setup_token: String,
    /// The clicks that `./dev demo` has created.
    #[serde(default)]
    pub(crate) history: Option<History>,
}

/// The clicks that `./dev demo` has created.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct History {
    /// The time of the last click.
    pub(crate) end: DateTime<Utc>,
    /// False while `./dev demo` runs, and after it was interrupted.
    pub(crate) is_complete: bool,
}

impl std::fmt::Debug for DemoAccount {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("DemoAccount").field("account_id", &self.account_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_an_older_version_can_be_read() {
        let state: State = serde_json::from_str(r#"{"ports":{"kafka":20001}}"#).unwrap();
        assert_eq!(state.ports["kafka"], 20_001);
        assert_eq!(state.postgres_folder, None);
        let inside = r#"{"postgres_folder":"/original/.dev/data/postgres"}"#;
        assert_eq!(serde_json::from_str::<State>(inside).unwrap().outside_folder(), None);
    }

    #[test]
    fn generated_keys_have_the_format_of_the_services() {
        let secrets = Secrets::generate().unwrap();
        let (id, key) = secrets.click_id_keys.split_once(':').unwrap();
        assert_eq!((id, key.len()), ("1", 64));
        assert_eq!(secrets.visitor_key.len(), 64);
        assert_ne!(secrets.click_id_keys, secrets.secret_keys);
    }

    #[test]
    fn debug_output_contains_no_secret() {
        let secrets = Secrets::generate().unwrap();
        assert!(!format!("{secrets:?}").contains(&secrets.visitor_key));
    }
}
