//! What can go wrong while a server is installed, started or watched.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// The reason why something is not ready yet, whatever its type.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A server could not be installed, started or reached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder of ours could not be used.
    #[error("could not {action} {}", path.display())]
    File {
        /// What was tried, such as "create".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A program could not be started at all.
    #[error("could not run {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A program that prepares something ended with a failure.
    #[error("{what} failed with {status}:\n{output}")]
    Failed {
        /// What it was to do.
        what: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it printed.
        output: String,
    },
    /// A server ended before it was ready.
    #[error("{name} ended with {status} before it was ready; the end of {}:\n{tail}", log.display())]
    Ended {
        /// The server.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// Its log file.
        log: PathBuf,
        /// The last lines of its log.
        tail: String,
    },
    /// A condition did not hold by its deadline.
    #[error("{what} was not ready after {} s", waited.as_secs())]
    NotReady {
        /// What was waited for.
        what: String,
        /// The deadline.
        waited: Duration,
        /// The last answer to "are you ready?".
        #[source]
        last: Option<Cause>,
    },
    /// The machine lacks something.
    #[error("{what} not found: {remedy}")]
    Missing {
        /// The thing.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// A name or a setting that the stack cannot use.
    #[error("{0}")]
    Unusable(String),
}

impl Error {
    /// An [`Error::File`] for [`Result::map_err`].
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::File { action, path, source }
    }
}
