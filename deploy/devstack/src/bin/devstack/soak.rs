//! `soak`: runs fault tests that take longer than a test may.

use std::process::{Command, ExitCode};

use devstack::process::run_attached;

use crate::cli::Soak;
use crate::compile::{exit_code, programs};
use crate::folder::Folder;
use crate::terminal::Interrupts;

/// Builds the services and the program `soak`, runs it, and returns its exit code.
pub(crate) async fn run(folder: &Folder, options: Soak) -> anyhow::Result<ExitCode> {
    let mut interrupts = Interrupts::new()?;
    tokio::select! {
        code = soak(folder, options) => code,
        () = interrupts.next() => Ok(ExitCode::from(130)),
    }
}

async fn soak(folder: &Folder, options: Soak) -> anyhow::Result<ExitCode> {
    // The build may replace this program's file; afterwards its path cannot be found.
    let this_program = std::env::current_exe()?;
    let names = ["ingest", "processor", "api", "dispatcher", "soak"];
    let programs = programs(folder.repository(), &names, options.release).await?;
    let mut soak = Command::new(&programs["soak"]);
    soak.args(options.arguments);
    soak.env("DEVSTACK_ENGINES", folder.engines()).env("DEVSTACK_BIN", this_program);
    Ok(exit_code(run_attached(soak).await?))
}
