//! Builds programs with cargo and finds them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context as _, ensure};
use devstack::process::run_attached;
use devstack::scratch::Scratch;
use serde::Deserialize;

/// The names of the four services and of their programs.
pub(crate) const SERVICES: [&str; 4] = ["ingest", "processor", "api", "dispatcher"];

/// A line of cargo's output with `--message-format=json`.
#[derive(Debug, Deserialize)]
struct Report {
    executable: Option<PathBuf>,
}

/// Builds the services unless they are [`prebuilt`], and returns the path of each program.
pub(crate) async fn services(repository: &Path, release: bool) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    match prebuilt() {
        Some(folder) => Ok(SERVICES.map(|name| (name.to_owned(), folder.join(name))).into()),
        None => programs(repository, &SERVICES, release).await,
    }
}

/// Returns the folder of programs that tests have built.
pub(crate) fn prebuilt() -> Option<PathBuf> {
    std::env::var_os("DEVSTACK_PROGRAMS").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Builds programs and returns the path of each. Cargo reports progress line by line on standard error, because other
/// parts of this process may report too.
pub(crate) async fn programs(
    repository: &Path,
    names: &[&str],
    release: bool,
) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let scratch = Scratch::new("cargo")?;
    let reports = scratch.path().join("reports");
    let mut cargo = cargo(repository);
    // --workspace: the same features of dependencies as in `./dev test`, so that neither rebuilds for the other.
    cargo.args(["build", "--workspace", "--message-format=json-render-diagnostics"]);
    cargo.args(names.iter().flat_map(|name| ["--bin", name]));
    if release {
        cargo.arg("--release");
    }
    cargo.env("CARGO_TERM_PROGRESS_WHEN", "never").stdout(File::create(&reports)?);
    let status = run_attached(cargo).await?;
    ensure!(status.success(), "the build failed: cargo ended with {status}");
    parse_reports(&std::fs::read_to_string(&reports)?, names)
}

/// Returns a cargo command in the repository.
pub(crate) fn cargo(repository: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut cargo = Command::new(program);
    cargo.current_dir(repository);
    cargo
}

/// Maps the exit status to this program's exit code; 128 for a program that a signal killed.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(128))
}

fn parse_reports(reports: &str, names: &[&str]) -> anyhow::Result<BTreeMap<String, PathBuf>> {
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
mod tests {
    use super::*;

    fn report(name: &str) -> String {
        format!(r#"{{"reason":"compiler-artifact","executable":"/target/debug/{name}"}}"#)
    }

    #[test]
    fn programs_are_found_in_the_reports_of_cargo() {
        let mut lines =
            vec![r#"{"reason":"compiler-artifact","executable":null}"#.to_owned(), "not json".to_owned()];
        lines.extend(SERVICES.map(report));
        let found = parse_reports(&lines.join("\n"), &SERVICES).unwrap();
        assert_eq!(found["api"], Path::new("/target/debug/api"));
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let error = parse_reports(&report("api"), &SERVICES).unwrap_err();
        assert_eq!(error.to_string(), "the package ingest has no program ingest");
    }
}
