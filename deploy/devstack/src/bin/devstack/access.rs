//! How programs prove to the engines of a cluster who they are, and what they trust.

use std::collections::BTreeMap;

use anyhow::Context as _;
use devstack::{Tls, kafka};
use schemas::grants::User;

use crate::folder::Folder;
use crate::state::Secrets;

/// The variable with the authority that the services trust for ClickHouse.
const CLICKHOUSE_CA: &str = "HOPLINE_CLICKHOUSE_CA_FILE";

/// The certificates and passwords of a cluster.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) tls: Tls,
    /// The users with the services' rights, each with its password.
    pub(crate) users: Vec<(User, String)>,
    administrator: String,
}

impl Access {
    /// Returns those of a folder, whose certificates the first call creates.
    pub(crate) fn of(folder: &Folder, secrets: &Secrets) -> anyhow::Result<Self> {
        let password = |user: User| {
            let password = secrets.users.get(user.name()).cloned();
            let missing = "this cluster was created by a version without TLS: `./dev reset` starts empty";
            Ok((user, password.context(missing)?))
        };
        Ok(Self {
            tls: Tls::in_folder(&folder.home())?,
            users: User::ALL.into_iter().map(password).collect::<anyhow::Result<_>>()?,
            administrator: secrets.engine_password.clone(),
        })
    }

    /// Returns the settings of a user's client of Kafka, or of the administrator's.
    pub(crate) fn kafka(&self, brokers: &str, user: Option<User>) -> BTreeMap<String, String> {
        let (name, password) = match user {
            Some(user) => (user.name(), self.password(user)),
            None => (kafka::ADMINISTRATOR, &*self.administrator),
        };
        kafka::settings(brokers, Some((name, password)), Some(&self.tls))
    }

    /// Returns an administrator's URL for a user.
    pub(crate) fn as_user(&self, url: &str, user: User) -> String {
        let parts = url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('@')?.1)));
        match parts {
            Some((scheme, rest)) => format!("{scheme}://{}:{}@{rest}", user.name(), self.password(user)),
            None => url.to_owned(),
        }
    }

    /// Returns the variables beside those with addresses.
    pub(crate) fn variables(&self) -> [(String, String); 1] {
        [(CLICKHOUSE_CA.to_owned(), self.tls.ca.display().to_string())]
    }

    fn password(&self, user: User) -> &str {
        self.users.iter().find(|(other, _)| *other == user).map_or("", |(_, password)| password)
    }
}
