//! Finds the country of an address in a file in MaxMind's format. The file can be replaced while the edge runs.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use arc_swap::ArcSwapOption;
use maxminddb::{MaxMindDbError, Reader, WithinOptions};
use metrics::{Counter, counter};
use serde::Deserialize;
use service::{Check, Shutdown};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// The file's name in the data directory.
pub const FILE: &str = "country.mmdb";

/// How often to check whether the file has changed.
const POLL: Duration = Duration::from_secs(2);

/// The countries of addresses, from the file that was loaded last. Clones share the same data.
#[derive(Clone, Default)]
pub struct Countries(Arc<ArcSwapOption<Reader<Vec<u8>>>>);

impl fmt::Debug for Countries {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Countries").field("loaded", &self.0.load().is_some()).finish()
    }
}

/// An entry of the file: DB-IP and others write `country_code`, MaxMind writes `country.iso_code`.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    country_code: Option<&'a str>,
    #[serde(borrow)]
    country: Option<Country<'a>>,
}

#[derive(Deserialize)]
struct Country<'a> {
    iso_code: Option<&'a str>,
}

/// Why a country file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CountryFileError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// The file is damaged, incomplete or of another kind.
    #[error("it is damaged, incomplete or not a country file: {0}")]
    Damaged(#[from] MaxMindDbError),
    /// The tree of networks has a cycle.
    #[error("it is damaged: its tree of networks has a cycle")]
    Cycle,
    /// No network has an entry.
    #[error("it contains no networks")]
    Empty,
}

impl Countries {
    /// Returns the ISO 3166-1 alpha-2 code of an address's country, if the file has it.
    pub fn find(&self, address: IpAddr) -> Option<String> {
        let reader = self.0.load();
        let found = reader.as_ref()?.lookup(address.to_canonical()).ok()?;
        let entry: Entry<'_> = found.decode().ok()??;
        let code = entry.country_code.or(entry.country.and_then(|country| country.iso_code))?;
        // An operator's own file may contain anything, and statistics are grouped by this value.
        let is_code = code.len() == 2 && code.bytes().all(|byte| byte.is_ascii_uppercase());
        is_code.then(|| code.to_owned())
    }

    /// Reads and checks a file and replaces the countries; returns the type and date of the file.
    fn load(&self, path: &Path) -> Result<String, CountryFileError> {
        let reader = Reader::from_source(fs::read(path)?)?;
        check_all(&reader)?;
        let metadata = reader.metadata();
        let built = i64::try_from(metadata.build_epoch).ok();
        let built = built.and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0));
        let built = built.map_or_else(String::new, |built| format!(" of {}", built.format("%Y-%m-%d")));
        let about = format!("{}{built}", metadata.database_type);
        self.0.store(Some(Arc::new(reader)));
        Ok(about)
    }
}

/// Reads every network of a file. A file that was overwritten in the middle can still have valid metadata at its end.
///
/// The reader's own check requires a description, which DB-IP's files lack.
fn check_all(reader: &Reader<Vec<u8>>) -> Result<(), CountryFileError> {
    let options = WithinOptions::default().include_networks_without_data();
    // A tree has one more leaf than nodes, and some more where subtrees are shared; a tree with a cycle has infinitely
    // many.
    let mut leaves_left = u64::from(reader.metadata().node_count) * 3 + 1;
    let mut read = HashSet::new();
    for network in reader.networks(options)? {
        leaves_left = leaves_left.checked_sub(1).ok_or(CountryFileError::Cycle)?;
        let network = network?;
        // Networks of the same country share an entry.
        if network.offset().is_some_and(|offset| read.insert(offset)) {
            network.decode::<Entry<'_>>()?;
        }
    }
    if read.is_empty() { Err(CountryFileError::Empty) } else { Ok(()) }
}

/// A country file that is reloaded whenever it changes.
#[derive(Debug)]
pub struct CountryFile {
    path: PathBuf,
    countries: Countries,
    check: Check,
    /// The stamp of the file when loading it was last tried.
    seen: Option<Stamp>,
    refused: Counter,
}

/// Detects a change: a new file has another inode, an overwritten one another length or time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let file = fs::metadata(path)?;
        Ok(Self { inode: file.ino(), bytes: file.len(), modified: (file.mtime(), file.mtime_nsec()) })
    }
}

impl CountryFile {
    /// Creates the state for a file, which need not exist yet. `check` reports the file that is used.
    ///
    /// The check is ready even without a file, because redirects need no countries.
    pub fn new(path: PathBuf, check: Check) -> Self {
        let refused = counter!("hopline_country_file_refused_total");
        Self { path, countries: Countries::default(), check, seen: None, refused }
    }

    /// Returns the countries; they change when the file is reloaded.
    pub fn countries(&self) -> Countries {
        self.countries.clone()
    }

    /// Reloads the file if it changed. A file that cannot be used leaves the countries unchanged.
    pub fn reload_if_changed(&mut self) {
        // Before reading: if the file changes meanwhile, its stamp differs at the next call.
        let stamp = Stamp::of(&self.path);
        let changed = match &stamp {
            Ok(stamp) => self.seen != Some(*stamp),
            // A missing file is reported once.
            Err(_) => self.seen.take().is_some() || !self.check.is_ready(),
        };
        if !changed {
            return;
        }
        let path = self.path.display();
        let loaded = match stamp {
            Ok(stamp) => {
                self.seen = Some(stamp);
                self.countries.load(&self.path)
            }
            Err(error) => Err(error.into()),
        };
        match loaded {
            Ok(about) => {
                tracing::info!("loaded the country file {path}: {about}");
                self.check.ready_with(format!("{path}: {about}"));
            }
            Err(error) => {
                self.refused.increment(1);
                let instead = match self.countries.0.load().is_some() {
                    true => "the one before it stays in use",
                    false => "clicks have no country",
                };
                tracing::error!("cannot use the country file {path}, {instead}: {error}");
                self.check.ready_with(format!("{path}: {error}; {instead}"));
            }
        }
    }

    /// Reloads the file whenever it changes, until a stop is requested.
    pub async fn watch(mut self, shutdown: Shutdown) {
        let reloads = async {
            loop {
                sleep(POLL).await;
                match spawn_blocking(move || {
                    self.reload_if_changed();
                    self
                })
                .await
                {
                    Ok(file) => self = file,
                    Err(panic) => {
                        tracing::error!("reloading the country file panicked, changes are ignored: {panic}");
                        return;
                    }
                }
            }
        };
        tokio::select! {
            () = shutdown.wait() => {}
            () = reloads => {}
        }
    }
}
