//! Third-party lists from files: crawlers of npm `crawler-user-agents`, browsers and systems of `uap-core`.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use serde::de::DeserializeOwned;

use super::crawlers::{Crawler, Crawlers};
use super::families::{self, Families};

/// The list of crawlers, from its package.
const CRAWLERS: &str = "crawler-user-agents.json";

/// The rules of browsers and operating systems: `regexes.yaml` of uap-core as JSON.
const FAMILIES: &str = "uap-core.json";

/// Why a list could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is missing or cannot be read.
    #[error("cannot read {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has another format.
    #[error("{} is not a valid list of agents", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// One of its patterns is not valid.
    #[error("{} has an invalid pattern: {reason}", .path.display())]
    Pattern {
        /// The file.
        path: PathBuf,
        /// The pattern and its error.
        reason: String,
    },
}

/// Both lists, compiled.
pub(super) struct Lists {
    pub(super) crawlers: Crawlers,
    pub(super) families: Families,
}

impl Lists {
    pub(super) fn load(folder: &Path) -> Result<Self, LoadError> {
        let path = folder.join(CRAWLERS);
        let list: Vec<Crawler> = read(&path)?;
        let crawlers = Crawlers::new(list).map_err(|reason| LoadError::Pattern { path, reason })?;
        let path = folder.join(FAMILIES);
        let rules: families::Rules = read(&path)?;
        let families = Families::new(rules).map_err(|reason| LoadError::Pattern { path, reason })?;
        Ok(Self { crawlers, families })
    }
}

impl fmt::Display for Lists {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} and {}", self.crawlers, self.families)
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    let text = fs::read(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| LoadError::Format { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_missing_or_damaged_list() {
        let folder = std::env::temp_dir().join(format!("hopline-agents-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let error = || Lists::load(&folder).err().unwrap();
        assert!(matches!(error(), LoadError::Io { path, .. } if path.ends_with(CRAWLERS)));
        fs::write(folder.join(CRAWLERS), r#"[{"pattern": "Googlebot"}, {"pattern": "#).unwrap();
        assert!(matches!(error(), LoadError::Format { path, .. } if path.ends_with(CRAWLERS)));
        fs::write(folder.join(CRAWLERS), r#"[{"pattern": "Googlebot"}, {"pattern": "(a"}]"#).unwrap();
        assert!(matches!(error(), LoadError::Pattern { path, .. } if path.ends_with(CRAWLERS)));
        fs::write(folder.join(CRAWLERS), r#"[{"pattern": "Googlebot"}]"#).unwrap();
        assert!(matches!(error(), LoadError::Io { path, .. } if path.ends_with(FAMILIES)));
        fs::write(folder.join(FAMILIES), r#"{"user_agent_parsers": [], "os_parsers": []}"#).unwrap();
        assert_eq!(
            Lists::load(&folder).unwrap().to_string(),
            "a list of 1 crawlers and 0 rules of browsers and systems"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
