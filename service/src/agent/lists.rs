//! The lists of others, from files: crawlers by npm `crawler-user-agents`, browsers and systems by `uap-core`.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use serde::de::DeserializeOwned;

use super::crawlers::{Crawler, Crawlers};
use super::families;
use super::families::Families;

/// The list of crawlers, as its package has it.
const CRAWLERS: &str = "crawler-user-agents.json";

/// The rules of browsers and operating systems: `regexes.yaml` of uap-core as JSON.
const FAMILIES: &str = "uap-core.json";

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no such file, or it cannot be read.
    #[error("cannot read {}", .path.display())]
    Io {
        /// The list.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no list of that kind.
    #[error("{} is no list of agents", .path.display())]
    Format {
        /// The list.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// One of its patterns is none.
    #[error("{} has a pattern that cannot be used: {reason}", .path.display())]
    Pattern {
        /// The list.
        path: PathBuf,
        /// Which and why.
        reason: String,
    },
}

/// Both lists, ready to be asked.
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
    fn a_list_that_is_missing_or_damaged_is_named() {
        let folder = std::env::temp_dir().join(format!("hopline-agents-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let refused = || Lists::load(&folder).err().unwrap();
        assert!(matches!(refused(), LoadError::Io { path, .. } if path.ends_with(CRAWLERS)));
        fs::write(folder.join(CRAWLERS), r#"[{"pattern": "Googlebot"}, {"pattern": "#).unwrap();
        assert!(matches!(refused(), LoadError::Format { path, .. } if path.ends_with(CRAWLERS)));
        fs::write(folder.join(CRAWLERS), r#"[{"pattern": "Googlebot"}, {"pattern": "(a"}]"#).unwrap();
        assert!(matches!(refused(), LoadError::Pattern { path, .. } if path.ends_with(CRAWLERS)));
        fs::write(folder.join(CRAWLERS), r#"[{"pattern": "Googlebot"}]"#).unwrap();
        assert!(matches!(refused(), LoadError::Io { path, .. } if path.ends_with(FAMILIES)));
        fs::write(folder.join(FAMILIES), r#"{"user_agent_parsers": [], "os_parsers": []}"#).unwrap();
        assert_eq!(
            Lists::load(&folder).unwrap().to_string(),
            "a list of 1 crawlers and 0 rules of browsers and systems"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
