//! Finds installed programs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// Finds the installed Postgres server: on the `PATH`, or else the newest in Debian's folder.
pub(crate) fn installed_postgres() -> Option<PathBuf> {
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
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Finds a program on the `PATH`, or fails with the way to install it.
pub(crate) fn program(name: &str, remedy: &str) -> Result<PathBuf, Error> {
    on_path(name)
        .ok_or_else(|| Error::Missing { what: format!("the program {name}"), remedy: remedy.to_owned() })
}

/// Finds Java in `JAVA_HOME`, or else on the `PATH`.
pub(crate) fn java() -> Result<PathBuf, Error> {
    std::env::var_os("JAVA_HOME")
        .map(|home| Path::new(&home).join("bin/java"))
        .filter(|java| java.is_file())
        .map_or_else(|| program("java", "install Java 17 or later (Debian: default-jre-headless)"), Ok)
}
