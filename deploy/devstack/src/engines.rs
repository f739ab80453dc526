//! The three engines together, each given by the environment or started.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::install::Cache;
use crate::readiness::until;
use crate::scratch::Scratch;
use crate::server::{Probe, Server};
use crate::{Cause, Error, clickhouse, kafka, postgres};

/// How long an engine that the environment names may take to answer.
const GIVEN_DEADLINE: Duration = Duration::from_secs(30);

/// Where an engine is started, and how.
#[derive(Debug)]
pub struct Options {
    /// Where it keeps its configuration and data.
    pub folder: PathBuf,
    /// The file for what it prints.
    pub log: PathBuf,
    /// The port it takes when free; 0 for any.
    pub port: u16,
    /// The password of its user; letters and digits. Kafka has none.
    pub password: String,
    /// Where downloaded engines are kept.
    pub cache: Cache,
    /// Whether data must survive the machine, too, and the engine live long; tests need neither.
    pub durable: bool,
    pub(crate) scratch: Option<Scratch>,
}

impl Options {
    /// An engine that keeps its data in `folder`.
    pub fn in_folder(folder: PathBuf, log: PathBuf, port: u16, password: &str, cache: Cache) -> Self {
        Self { folder, log, port, password: password.to_owned(), cache, durable: true, scratch: None }
    }

    /// An engine in a temporary folder on any free port; the folder is removed with it.
    ///
    /// # Errors
    /// [`Error::File`] when the folder cannot be made.
    pub fn throw_away(name: &str) -> Result<Self, Error> {
        let scratch = Scratch::new(name)?;
        Ok(Self {
            folder: scratch.path().join(name),
            log: scratch.path().join(format!("{name}.log")),
            port: 0,
            password: "hopline".to_owned(),
            cache: Cache::shared(),
            durable: false,
            scratch: Some(scratch),
        })
    }

    /// The same with another cache.
    #[must_use]
    pub fn with_cache(mut self, cache: &Cache) -> Self {
        self.cache = cache.clone();
        self
    }
}

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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Kafka, Self::ClickHouse, Self::Postgres];

    /// The name in commands, folders and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::ClickHouse => "clickhouse",
            Self::Postgres => "postgres",
        }
    }

    /// The environment variable that says where it is.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Kafka => "KAFKA_BROKERS",
            Self::ClickHouse => "CLICKHOUSE_URL",
            Self::Postgres => "DATABASE_URL",
        }
    }

    /// Where the environment says it is; an empty variable says nothing.
    pub fn given(self) -> Option<String> {
        std::env::var(self.variable()).ok().filter(|url| !url.is_empty())
    }

    fn probe(self, url: &str) -> Probe {
        let url = url.to_owned();
        match self {
            Self::Kafka => Probe::Kafka { brokers: url },
            Self::ClickHouse => Probe::ClickHouse { url },
            Self::Postgres => Probe::Postgres { url },
        }
    }

    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// What keeps it from being installed or started.
    pub async fn start(self, options: Options) -> Result<Server, Error> {
        match self {
            Self::Kafka => kafka::start(options).await,
            Self::ClickHouse => clickhouse::start(options).await,
            Self::Postgres => postgres::start(options).await,
        }
    }
}

/// An engine that the environment names, or one that we started.
#[derive(Debug)]
pub enum Engine {
    /// Named by an environment variable; not ours to stop.
    Given {
        /// Which engine.
        kind: Kind,
        /// What the variable says.
        url: String,
    },
    /// Started by us.
    Started(Arc<Server>),
}

impl Engine {
    /// Takes the engine that the environment names, once it answers, else starts one.
    ///
    /// # Errors
    /// [`Error::NotReady`] naming the variable when the given engine does not answer within 30 s, or what keeps ours
    /// from starting.
    pub async fn from_env_or_start(
        kind: Kind,
        options: impl FnOnce(Kind) -> Result<Options, Error>,
    ) -> Result<Self, Error> {
        let Some(url) = kind.given() else {
            return Ok(Self::Started(Arc::new(kind.start(options(kind)?).await?)));
        };
        let probe = kind.probe(&url);
        let what = format!("{}, which {} names,", kind.name(), kind.variable());
        until(&what, GIVEN_DEADLINE, || probe.ask()).await?;
        Ok(Self::Given { kind, url })
    }

    /// Where clients find it.
    pub fn url(&self) -> &str {
        match self {
            Self::Given { url, .. } => url,
            Self::Started(server) => server.url(),
        }
    }

    /// The server, when it is ours.
    pub fn server(&self) -> Option<&Arc<Server>> {
        match self {
            Self::Given { .. } => None,
            Self::Started(server) => Some(server),
        }
    }

    /// Asks whether it is ready now.
    ///
    /// # Errors
    /// The reason why it is not.
    pub async fn check(&self) -> Result<(), Cause> {
        match self {
            Self::Given { kind, url } => kind.probe(url).ask().await,
            Self::Started(server) => server.check().await,
        }
    }
}

/// All three engines.
#[derive(Debug)]
pub struct Engines {
    /// Kafka.
    pub kafka: Engine,
    /// ClickHouse.
    pub clickhouse: Engine,
    /// Postgres.
    pub postgres: Engine,
}

impl Engines {
    /// Takes each engine that the environment names and starts the others, all at once, with these options.
    ///
    /// # Errors
    /// The first engine's failure; the others are killed then.
    pub async fn from_env_or_start(options: impl Fn(Kind) -> Result<Options, Error>) -> Result<Self, Error> {
        let engine = |kind| Engine::from_env_or_start(kind, &options);
        let (kafka, clickhouse, postgres) =
            tokio::try_join!(engine(Kind::Kafka), engine(Kind::ClickHouse), engine(Kind::Postgres))?;
        Ok(Self { kafka, clickhouse, postgres })
    }

    /// Takes each engine that the environment names and starts the others in temporary folders, for tests.
    ///
    /// # Errors
    /// As [`Engines::from_env_or_start`].
    pub async fn from_env_or_throw_away() -> Result<Self, Error> {
        Self::from_env_or_start(|kind| Options::throw_away(kind.name())).await
    }

    /// The environment variables that tell programs where the engines are.
    pub fn environment(&self) -> [(&'static str, &str); 3] {
        [
            (Kind::Kafka.variable(), self.kafka.url()),
            (Kind::ClickHouse.variable(), self.clickhouse.url()),
            (Kind::Postgres.variable(), self.postgres.url()),
        ]
    }

    /// Stops those that are ours, all at once.
    pub async fn stop(&self) {
        let stop = async |engine: &Engine| {
            if let Some(server) = engine.server() {
                server.stop().await;
            }
        };
        tokio::join!(stop(&self.kafka), stop(&self.clickhouse), stop(&self.postgres));
    }
}
