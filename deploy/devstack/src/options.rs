//! Where an engine runs and with which settings.

use std::path::PathBuf;

use schemas::grants::User;

use crate::install::Cache;
use crate::scratch::Scratch;
use crate::{Error, Tls};

/// The folder, port and other settings of an engine.
#[derive(Debug)]
pub struct Options {
    /// Its name in reports and errors.
    pub name: String,
    /// Where it keeps its configuration and data.
    pub folder: PathBuf,
    /// The log file.
    pub log: PathBuf,
    /// The preferred port; 0 for any.
    pub port: u16,
    /// The password of its administrator; letters and digits. Kafka's first listener asks for none, unless the engine
    /// is durable and has users.
    pub password: String,
    /// Where downloaded engines are kept.
    pub cache: Cache,
    /// Whether data must survive a crash of the machine and the engine runs for long. Tests need neither.
    pub durable: bool,
    /// Those users of [`schemas::grants`] that the engine also has, each with its password: Kafka on a listener of its
    /// own ([`crate::kafka::with_users`]), Postgres without rights but that `hopline_migrate` owns the database.
    /// ClickHouse has them with their rights; in tests for each of [`Options::databases`].
    pub users: Vec<(User, String)>,
    /// For how many databases, `t0`, `t1` and so on, a ClickHouse that is not durable has users: the library cannot
    /// make users while it runs. Each takes 5 ms of a processor at every start.
    pub databases: u32,
    /// The certificate with which the engine encrypts every connection except those to Kafka's first listener.
    pub tls: Option<Tls>,
    pub(crate) scratch: Option<Scratch>,
}

/// The number of databases with users of an engine that one test starts.
const DATABASES: u32 = 10;

/// The password of every user of an engine of a test.
const PASSWORD: &str = "hopline";

impl Options {
    /// Returns whether everybody needs a password, also the administrator of Kafka, which asks a test's for none.
    pub(crate) fn is_closed(&self) -> bool {
        self.durable && !self.users.is_empty()
    }

    /// Returns options for an engine that keeps its data in `folder`.
    pub fn in_folder(
        name: &str,
        folder: PathBuf,
        log: PathBuf,
        port: u16,
        password: &str,
        cache: Cache,
    ) -> Self {
        Self {
            name: name.to_owned(),
            folder,
            log,
            port,
            password: password.to_owned(),
            cache,
            durable: true,
            users: Vec::new(),
            databases: 0,
            tls: None,
            scratch: None,
        }
    }

    /// Returns options for an engine on any free port, in a temporary folder that is removed with the engine.
    ///
    /// # Errors
    /// [`Error::File`] when the folder cannot be created.
    pub fn throw_away(name: &str) -> Result<Self, Error> {
        let scratch = Scratch::new(name)?;
        Ok(Self {
            name: name.to_owned(),
            folder: scratch.path().join(name),
            log: scratch.path().join(format!("{name}.log")),
            port: 0,
            password: PASSWORD.to_owned(),
            cache: Cache::shared(),
            durable: false,
            users: User::ALL.map(|user| (user, PASSWORD.to_owned())).into(),
            databases: DATABASES,
            tls: None,
            scratch: Some(scratch),
        })
    }
}
