//! `test`: all tests on separate engines.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use devstack::install::Cache;
use devstack::process::run_attached;
use devstack::{Engines, Options};

use crate::compile::cargo;
use crate::folder::Folder;
use crate::terminal::{Interrupts, complain};

/// Starts engines, builds every program, runs `cargo test`, and returns its exit code.
pub(crate) async fn run(folder: &Folder, arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let mut interrupts = Interrupts::new()?;
    let cache = Cache::new(folder.engines(), Arc::new(complain));
    let began = Instant::now();
    let options = |kind: devstack::Kind| Ok(Options::throw_away(kind.name())?.with_cache(&cache));
    let engines = tokio::select! {
        engines = Engines::from_env_or_start(options) => engines?,
        () = interrupts.next() => return Ok(ExitCode::from(130)),
    };
    complain(&format!("engines ready after {:.1} s", began.elapsed().as_secs_f32()));
    let code = tokio::select! {
        code = cargo_test(folder, &engines, arguments) => code,
        () = interrupts.next() => Ok(130),
    };
    engines.stop().await;
    code.map(ExitCode::from)
}

async fn cargo_test(folder: &Folder, engines: &Engines, arguments: Vec<OsString>) -> anyhow::Result<u8> {
    // Asked first: the build may replace this program's file, and then the kernel knows no path to it any more.
    let this_program = std::env::current_exe()?;
    // The tests start the services' programs, which `cargo test` builds only for their own packages.
    let mut build = cargo(folder.repository());
    build.args(["build", "--workspace", "--bins"]);
    let status = run_attached(build).await?;
    ensure!(status.success(), "the build failed: cargo ended with {status}");

    let mut test = cargo(folder.repository());
    test.arg("test");
    if !names_a_package(&arguments) {
        test.arg("--workspace");
    }
    test.args(arguments).envs(engines.environment());
    test.env("DEVSTACK_ENGINES", folder.engines()).env("DEVSTACK_BIN", this_program);
    let status = run_attached(test).await?;
    // Without a code it was killed by a signal; shells say 128 and more then.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(128))
}

/// Whether `cargo test`'s own arguments, those before a `--`, choose packages.
fn names_a_package(arguments: &[OsString]) -> bool {
    let own = arguments.iter().take_while(|argument| *argument != "--");
    own.map(|argument| argument.to_string_lossy()).any(|argument| {
        argument.starts_with("--package") || (argument.starts_with("-p") && !argument.starts_with("--"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_package_is_noticed_before_the_test_programs_arguments_only() {
        let named = |text: &str| names_a_package(&text.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(named("-p api"));
        assert!(named("--package=api"));
        assert!(!named("--test it"));
        assert!(!named("--test it -- -p api"));
    }
}
