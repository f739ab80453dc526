//! `test`: runs all tests on separate engines.

use std::ffi::OsString;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use devstack::install::Cache;
use devstack::process::run_attached;
use devstack::{Engine, Kind, Options, USERS_VARIABLE};

use crate::compile::{cargo, exit_code};
use crate::folder::Folder;
use crate::terminal::{Interrupts, print_error};

/// Starts engines, builds every program, runs `cargo test`, and returns its exit code.
pub(crate) async fn run(folder: &Folder, arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let mut interrupts = Interrupts::new()?;
    let cache = Cache::new(folder.engines(), Arc::new(print_error));
    let began = Instant::now();
    let options = |kind: Kind| {
        let mut options = Options::throw_away(kind.name())?;
        options.cache = cache.clone();
        Ok(options)
    };
    let engine = |kind| Engine::from_env_or_start(kind, options);
    let engines =
        async { tokio::try_join!(engine(Kind::Kafka), engine(Kind::ClickHouse), engine(Kind::Postgres)) };
    let (kafka, clickhouse, postgres) = tokio::select! {
        engines = engines => engines?,
        () = interrupts.next() => return Ok(ExitCode::from(130)),
    };
    print_error(&format!("engines ready after {:.1} s", began.elapsed().as_secs_f32()));
    let variables = [
        (Kind::Kafka.variable(), kafka.url()),
        (Kind::ClickHouse.variable(), clickhouse.url()),
        (Kind::Postgres.variable(), postgres.url()),
    ];
    let have_users = [&kafka, &clickhouse, &postgres].iter().all(|engine| engine.server().is_some());
    tokio::select! {
        code = cargo_test(folder, variables, have_users, arguments) => code,
        () = interrupts.next() => Ok(ExitCode::from(130)),
    }
}

async fn cargo_test(
    folder: &Folder,
    engines: [(&str, &str); 3],
    have_users: bool,
    arguments: Vec<OsString>,
) -> anyhow::Result<ExitCode> {
    // The build may replace this program's file; afterwards its path cannot be found.
    let this_program = std::env::current_exe()?;
    // The tests start the services' programs, which `cargo test` builds only for the packages that it tests.
    if selects_targets(&arguments) {
        let mut build = cargo(folder.repository());
        build.args(["build", "--workspace", "--bins"]);
        let status = run_attached(build).await?;
        ensure!(status.success(), "the build failed: cargo ended with {status}");
    }

    let mut test = cargo(folder.repository());
    test.arg("test");
    if !has_package_option(&arguments) {
        test.arg("--workspace");
    }
    // Tests mostly wait, for engines and for timers: with one for each core the cores would be idle half of the time.
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        test.env("RUST_TEST_THREADS", (2 * cores).to_string());
    }
    test.args(arguments).envs(engines);
    if have_users {
        test.env(USERS_VARIABLE, "1");
    }
    test.env("DEVSTACK_ENGINES", folder.engines()).env("DEVSTACK_BIN", this_program);
    Ok(exit_code(run_attached(test).await?))
}

/// Returns whether there are arguments of `cargo test` itself, before a `--`.
fn selects_targets(arguments: &[OsString]) -> bool {
    arguments.first().is_some_and(|argument| *argument != "--")
}

/// Returns whether the arguments of `cargo test`, those before a `--`, select packages.
fn has_package_option(arguments: &[OsString]) -> bool {
    let cargo_arguments = arguments.iter().take_while(|argument| *argument != "--");
    cargo_arguments.map(|argument| argument.to_string_lossy()).any(|argument| {
        argument.starts_with("--package") || (argument.starts_with("-p") && !argument.starts_with("--"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_option_counts_only_before_the_double_dash() {
        let has = |text: &str| has_package_option(&text.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(has("-p api"));
        assert!(has("--package=api"));
        assert!(!has("--test it"));
        assert!(!has("--test it -- -p api"));
    }
}
