//! Errors of installing, starting and watching servers.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// The reason why something is not ready yet.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A server could not be installed, started or reached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be used.
    #[error("could not {action} {}", path.display())]
    File {
        /// The attempted action, such as "create".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A program could not be started.
    #[error("could not run {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A program that runs to its end, such as an installer, failed.
    #[error("{what} failed with {status}:\n{output}")]
    Failed {
        /// Its task.
        what: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output.
        output: String,
    },
    /// A server ended before it was ready.
    #[error("{name} ended with {status} before it was ready; the end of {}:\n{tail}", log.display())]
    Ended {
        /// The server's name.
        name: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its log file.
        log: PathBuf,
        /// The last lines of its log.
        tail: String,
    },
    /// A condition did not hold by its deadline.
    #[error("{what} was not ready after {} s", waited.as_secs())]
    NotReady {
        /// The awaited condition.
        what: String,
        /// The deadline.
        waited: Duration,
        /// The result of the last check.
        #[source]
        last: Option<Cause>,
    },
    /// Something is not installed on this machine.
    #[error("{what} not found: {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// How to install it.
        remedy: String,
    },
    /// A name, a setting or a file is invalid.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Returns a function that makes an [`Error::File`], for [`Result::map_err`].
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::File { action, path, source }
    }
}
