//! The three engines, each either external, by an environment variable, or started here.

use std::sync::Arc;
use std::time::Duration;

use crate::readiness::until;
use crate::{Cause, Error, Options, Probe, Server, clickhouse, kafka, postgres};

/// How long an external engine may take to answer.
const EXTERNAL_DEADLINE: Duration = Duration::from_secs(30);

/// Set for the tests when the engines in the environment have the users of [`schemas::grants`].
pub const USERS_VARIABLE: &str = "DEVSTACK_USERS";

/// One of the three engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Apache Kafka.
    Kafka,
    /// ClickHouse.
    ClickHouse,
    /// Postgres.
    Postgres,
}

impl Kind {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Kafka, Self::ClickHouse, Self::Postgres];

    /// The name in commands, folders and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::ClickHouse => "clickhouse",
            Self::Postgres => "postgres",
        }
    }

    /// The environment variable with the engine's address.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Kafka => kafka::BROKERS,
            Self::ClickHouse => "CLICKHOUSE_URL",
            Self::Postgres => "DATABASE_URL",
        }
    }

    /// Returns the address of the external engine; `None` when the variable is missing or empty.
    pub fn external_url(self) -> Option<String> {
        std::env::var(self.variable()).ok().filter(|url| !url.is_empty())
    }

    fn probe(self, url: &str) -> Probe {
        let url = url.to_owned();
        match self {
            Self::Kafka => Probe::Kafka { client: kafka::settings(&url, None, None).into_iter().collect() },
            Self::ClickHouse => Probe::ClickHouse { url, ca: None },
            Self::Postgres => Probe::Postgres { url },
        }
    }

    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// The reason why it cannot be installed or started.
    pub async fn start(self, options: Options) -> Result<Server, Error> {
        match self {
            Self::Kafka => kafka::start(options).await,
            Self::ClickHouse => clickhouse::start(options).await,
            Self::Postgres => postgres::start(options).await,
        }
    }
}

/// An external engine or one started here.
#[derive(Debug)]
pub enum Engine {
    /// Its address comes from an environment variable; it is never stopped from here.
    External {
        /// Which engine.
        kind: Kind,
        /// The variable's value.
        url: String,
    },
    /// Started here.
    Started(Arc<Server>),
}

impl Engine {
    /// Returns the external engine once it answers, or starts one when there is none.
    ///
    /// # Errors
    /// [`Error::NotReady`] with the variable's name when the external engine does not answer within 30 s, or the
    /// reason why an engine cannot be started.
    pub async fn from_env_or_start(
        kind: Kind,
        options: impl FnOnce(Kind) -> Result<Options, Error>,
    ) -> Result<Self, Error> {
        match Self::external(kind).await? {
            Some(external) => Ok(external),
            None => Ok(Self::Started(Arc::new(kind.start(options(kind)?).await?))),
        }
    }

    /// Returns the external engine once it answers; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::NotReady`] with the variable's name when it does not answer within 30 s.
    pub async fn external(kind: Kind) -> Result<Option<Self>, Error> {
        let Some(url) = kind.external_url() else { return Ok(None) };
        let probe = kind.probe(&url);
        let what = format!("{} ({})", kind.name(), kind.variable());
        until(&what, EXTERNAL_DEADLINE, || probe.check()).await?;
        Ok(Some(Self::External { kind, url }))
    }

    /// The address for clients.
    pub fn url(&self) -> &str {
        match self {
            Self::External { url, .. } => url,
            Self::Started(server) => server.url(),
        }
    }

    /// The server of an engine started here.
    pub fn server(&self) -> Option<&Arc<Server>> {
        match self {
            Self::External { .. } => None,
            Self::Started(server) => Some(server),
        }
    }

    /// Checks whether it is ready now.
    ///
    /// # Errors
    /// The reason why it is not.
    pub async fn check(&self) -> Result<(), Cause> {
        match self {
            Self::External { kind, url } => kind.probe(url).check().await,
            Self::Started(server) => server.check().await,
        }
    }
}
