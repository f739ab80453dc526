//! `cargo build`, and where it put the programs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use devstack::process::run_attached;
use devstack::scratch::Scratch;
use serde::Deserialize;

/// The four services, and the name of each one's program.
pub(crate) const SERVICES: [&str; 4] = ["ingest", "processor", "api", "dispatcher"];

/// One line of what cargo reports with `--message-format=json`; we read only the programs.
#[derive(Debug, Deserialize)]
struct Report {
    executable: Option<PathBuf>,
}

/// Builds the services and returns the path of each program; those of [`given`] are taken as they are.
pub(crate) async fn services(repository: &Path, release: bool) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    match given() {
        Some(folder) => Ok(SERVICES.map(|name| (name.to_owned(), folder.join(name))).into()),
        None => programs(repository, &SERVICES, release).await,
    }
}

/// The folder of programs that are built already, for tests: a stack of theirs needs no compiler.
pub(crate) fn given() -> Option<PathBuf> {
    std::env::var_os("DEVSTACK_PROGRAMS").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Builds programs and returns the path of each. Cargo's own progress goes to our standard error.
pub(crate) async fn programs(
    repository: &Path,
    names: &[&str],
    release: bool,
) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let scratch = Scratch::new("cargo")?;
    let reports = scratch.path().join("reports");
    let mut cargo = cargo(repository);
    // The whole workspace chooses the features of dependencies, as it does for tests: else one builds what the
    // other has just replaced.
    cargo.args(["build", "--workspace", "--message-format=json-render-diagnostics"]);
    cargo.args(names.iter().flat_map(|name| ["--bin", name]));
    if release {
        cargo.arg("--release");
    }
    cargo.stdout(File::create(&reports)?);
    let status = run_attached(cargo).await?;
    ensure!(status.success(), "the build failed: cargo ended with {status}");
    reported(&std::fs::read_to_string(&reports)?, names)
}

/// Cargo, the one that runs us if any, in the repository.
pub(crate) fn cargo(repository: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut cargo = Command::new(program);
    cargo.current_dir(repository);
    cargo
}

fn reported(reports: &str, names: &[&str]) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let built: BTreeMap<String, PathBuf> = reports
        .lines()
        .filter_map(|line| serde_json::from_str::<Report>(line).ok()?.executable)
        .filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), path)))
        .collect();
    for name in names {
        built.get(*name).with_context(|| format!("the package {name} has no program {name}"))?;
    }
    Ok(built)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn report(name: &str) -> String {
        format!(r#"{{"reason":"compiler-artifact","executable":"/target/debug/{name}"}}"#)
    }

    #[test]
    fn the_programs_are_found_in_cargos_report() {
        let mut lines =
            vec![r#"{"reason":"compiler-artifact","executable":null}"#.to_owned(), "no json".to_owned()];
        lines.extend(SERVICES.map(report));
        let found = reported(&lines.join("\n"), &SERVICES).unwrap();
        assert_eq!(found["api"], Path::new("/target/debug/api"));
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn a_service_without_a_program_is_named() {
        let error = reported(&report("api"), &SERVICES).unwrap_err();
        assert_eq!(error.to_string(), "the package ingest has no program ingest");
    }
}
