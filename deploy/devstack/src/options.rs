//! Where an engine runs and with which settings.

use std::path::PathBuf;

use crate::Error;
use crate::install::Cache;
use crate::scratch::Scratch;

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
    /// The password of its user; letters and digits. Kafka's first listener asks for none.
    pub password: String,
    /// Where downloaded engines are kept.
    pub cache: Cache,
    /// Whether data must survive a crash of the machine and the engine runs for long. Tests need neither.
    pub durable: bool,
    /// Whether the engine also has the users of [`schemas::grants`], each with [`Options::password`], as the tests
    /// expect: Kafka on a second listener ([`crate::kafka::with_users`]); Postgres without rights; ClickHouse for each
    /// of the databases [`crate::clickhouse::databases`].
    pub users: bool,
    /// A file with a private key and its certificate in PEM: Kafka's listener of users and Postgres then want TLS.
    pub tls: Option<PathBuf>,
    pub(crate) scratch: Option<Scratch>,
}

impl Options {
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
            users: false,
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
            password: "hopline".to_owned(),
            cache: Cache::shared(),
            durable: false,
            users: true,
            tls: None,
            scratch: Some(scratch),
        })
    }
}
