//! Which country an address is in, by a file in MaxMind's format that can be replaced while the edge runs.

use std::{
    collections::HashSet,
    fmt, fs, io,
    net::IpAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwapOption;
use maxminddb::{MaxMindDbError, Reader, WithinOptions};
use metrics::{Counter, counter};
use serde::Deserialize;
use service::{Check, Shutdown};
use tokio::{task::spawn_blocking, time::sleep};

/// The file's name in the folder of data.
pub const FILE: &str = "country.mmdb";

/// How often the file is looked at.
const POLL: Duration = Duration::from_secs(2);

/// The countries of addresses, as the file that was read last has them. Clones are handles to the same.
#[derive(Clone, Default)]
pub struct Countries(Arc<ArcSwapOption<Reader<Vec<u8>>>>);

impl fmt::Debug for Countries {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Countries").field("known", &self.0.load().is_some()).finish()
    }
}

/// What a file has of an address: `country_code` as DB-IP and others write it, `country.iso_code` as MaxMind does.
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

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// It is damaged, half-written or something else.
    #[error("it is not a whole file of countries: {0}")]
    Damaged(#[from] MaxMindDbError),
    /// Its tree leads back to itself.
    #[error("it is not a whole file of countries: its networks never end")]
    Endless,
    /// No network in it has an entry.
    #[error("there is no network in it")]
    Empty,
}

impl Countries {
    /// Returns the ISO 3166-1 alpha-2 code of the country that an address is in, when the file knows it.
    pub fn of(&self, address: IpAddr) -> Option<String> {
        let reader = self.0.load();
        let found = reader.as_ref()?.lookup(address.to_canonical()).ok()?;
        let entry: Entry<'_> = found.decode().ok()??;
        let code = entry.country_code.or(entry.country.and_then(|country| country.iso_code))?;
        // Whatever an operator's own file holds, a column that statistics are grouped by gets countries.
        let is_code = code.len() == 2 && code.bytes().all(|byte| byte.is_ascii_uppercase());
        is_code.then(|| code.to_owned())
    }

    /// Reads and checks a file and uses it from now on; returns what it says of itself.
    fn load(&self, path: &Path) -> Result<String, Unusable> {
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

/// Reads every network of a file: one that was written over in the middle still has an end that looks well.
///
/// The reader's own check is stricter than makers of files are: DB-IP's have no description.
fn check_all(reader: &Reader<Vec<u8>>) -> Result<(), Unusable> {
    let options = WithinOptions::default().include_networks_without_data();
    // A tree has one leaf more than it has nodes, some more where parts of it are shared; one that leads back to
    // itself has them without end.
    let mut leaves_left = u64::from(reader.metadata().node_count) * 3 + 1;
    let mut read = HashSet::new();
    for network in reader.networks(options)? {
        leaves_left = leaves_left.checked_sub(1).ok_or(Unusable::Endless)?;
        let network = network?;
        if network.offset().is_some_and(|offset| read.insert(offset)) {
            network.decode::<Entry<'_>>()?;
        }
    }
    // Many networks of one country share their entry, but a file without any tells nothing.
    if read.is_empty() { Err(Unusable::Empty) } else { Ok(()) }
}

/// A file of countries that is read again whenever it changes.
#[derive(Debug)]
pub struct CountryFile {
    path: PathBuf,
    countries: Countries,
    check: Check,
    /// What the file looked like when it was last tried.
    seen: Option<Stamp>,
    refused: Counter,
}

/// Changes with the file: a new one has another inode, one written over another length or time.
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
    /// Names a file, which may not be there yet, and the check that tells what is used.
    ///
    /// The check is ready without a file too: redirects need no countries.
    pub fn new(path: PathBuf, check: Check) -> Self {
        let refused = counter!("hopline_country_file_refused_total");
        // So that an alarm finds the series before the first one.
        refused.increment(0);
        Self { path, countries: Countries::default(), check, seen: None, refused }
    }

    /// Returns a handle to the countries.
    pub fn countries(&self) -> Countries {
        self.countries.clone()
    }

    /// Looks at the file, and reads it if it changed. One that cannot be used leaves the countries as they were.
    pub fn look(&mut self) {
        // Before reading: what is written meanwhile changes the stamp, and is read the next time.
        let stamp = Stamp::of(&self.path);
        let change = match &stamp {
            Ok(stamp) => self.seen != Some(*stamp),
            // A file that went away is told once, and so is one that was never there.
            Err(_) => self.seen.take().is_some() || !self.check.is_ready(),
        };
        if !change {
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
                tracing::info!("countries are told by {path}: {about}");
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

    /// Looks at the file every two seconds until a stop is requested.
    pub async fn follow(mut self, shutdown: Shutdown) {
        let looks = async {
            loop {
                sleep(POLL).await;
                // Reading and checking takes time that other tasks of this thread have not.
                match spawn_blocking(move || {
                    self.look();
                    self
                })
                .await
                {
                    Ok(file) => self = file,
                    Err(panic) => {
                        tracing::error!("looking at the country file panicked: {panic}");
                        return;
                    }
                }
            }
        };
        tokio::select! {
            () = shutdown.wait() => {}
            () = looks => {}
        }
    }
}
