//! What the stack remembers from one start to the next.

use std::collections::BTreeMap;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use devstack::{Error, random};
use serde::{Deserialize, Serialize};

/// The file of [`State`].
pub(crate) const STATE: &str = "state.json";
/// The file of [`Secrets`].
pub(crate) const SECRETS: &str = "secrets.json";
/// The file of [`Demo`].
pub(crate) const DEMO: &str = "demo.json";

/// Where the engines were the last time, so that they are there again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// The engines' ports by name, and that of the webhook receiver.
    pub(crate) ports: BTreeMap<String, u16>,
    /// Where Postgres keeps its data, when that is not in `.dev`.
    pub(crate) postgres_folder: Option<PathBuf>,
    /// The `.dev` whose data are in `postgres_folder`: a copy of this file does not own them.
    pub(crate) owner: Option<PathBuf>,
}

impl State {
    /// Where Postgres keeps its data, when that is not in a `.dev`, as earlier versions noted it, too.
    pub(crate) fn elsewhere(&self) -> Option<PathBuf> {
        self.postgres_folder.clone().filter(|folder| !folder.ends_with(".dev/data/postgres"))
    }
}

/// The keys and passwords of this stack, drawn at its first start.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Secrets {
    /// For `HOPLINE_CLICK_ID_KEYS`.
    pub(crate) click_id_keys: String,
    /// For `HOPLINE_VISITOR_KEY`.
    pub(crate) visitor_key: String,
    /// For `HOPLINE_SECRET_KEYS`.
    pub(crate) secret_keys: String,
    /// Of the engines' user.
    pub(crate) engine_password: String,
}

impl Secrets {
    /// Draws new ones from the operating system's generator.
    pub(crate) fn draw() -> Result<Self, Error> {
        Ok(Self {
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

/// The account that a new user tries the product with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Demo {
    pub(crate) account_id: String,
    pub(crate) workspace_id: String,
    /// Scope `read,write`, on the Business plan.
    pub(crate) api_key: String,
    /// Operator-wide.
    pub(crate) edge_token: String,
    /// What the dashboard's set-up asks for while nobody can sign in.
    #[serde(default)]
    pub(crate) setup_token: String,
    /// What `./dev demo` has filled it with.
    #[serde(default)]
    pub(crate) history: Option<History>,
}

/// The clicks that a demo account has from `./dev demo`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) end: DateTime<Utc>,
    /// False while it is being filled, and when that was interrupted.
    pub(crate) is_complete: bool,
}

impl std::fmt::Debug for Demo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Demo").field("account_id", &self.account_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_an_older_version_is_read_with_defaults() {
        let state: State = serde_json::from_str(r#"{"ports":{"kafka":20001}}"#).unwrap();
        assert_eq!(state.ports["kafka"], 20_001);
        assert_eq!(state.postgres_folder, None);
        let inside = r#"{"postgres_folder":"/original/.dev/data/postgres"}"#;
        assert_eq!(serde_json::from_str::<State>(inside).unwrap().elsewhere(), None);
    }

    #[test]
    fn drawn_keys_have_the_form_that_the_services_read() {
        let secrets = Secrets::draw().unwrap();
        let (id, key) = secrets.click_id_keys.split_once(':').unwrap();
        assert_eq!((id, key.len()), ("1", 64));
        assert_eq!(secrets.visitor_key.len(), 64);
        assert_ne!(secrets.click_id_keys, secrets.secret_keys);
    }

    #[test]
    fn no_secret_is_shown_by_debug() {
        let secrets = Secrets::draw().unwrap();
        assert!(!format!("{secrets:?}").contains(&secrets.visitor_key));
    }
}
