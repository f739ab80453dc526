//! `soak`: faults for longer than a test may take.

use std::process::{Command, ExitCode};

use devstack::process::run_attached;

use crate::cli::Soak;
use crate::compile;
use crate::folder::Folder;
use crate::terminal::Interrupts;

/// The program that does it.
const SOAK: &str = "soak";

/// Builds what is needed, runs `soak`, and returns its exit code.
pub(crate) async fn run(folder: &Folder, options: Soak) -> anyhow::Result<ExitCode> {
    let mut interrupts = Interrupts::new()?;
    let code = tokio::select! {
        code = soak(folder, options) => code?,
        () = interrupts.next() => 130,
    };
    Ok(ExitCode::from(code))
}

async fn soak(folder: &Folder, options: Soak) -> anyhow::Result<u8> {
    // Asked first: the build may replace this program's file, and then the kernel knows no path to it any more.
    let this_program = std::env::current_exe()?;
    let programs = compile::programs(
        folder.repository(),
        &["ingest", "processor", "api", "dispatcher", SOAK],
        options.release,
    )
    .await?;
    let mut run = Command::new(&programs[SOAK]);
    run.args(options.arguments);
    run.env("DEVSTACK_ENGINES", folder.engines()).env("DEVSTACK_BIN", this_program);
    let status = run_attached(run).await?;
    // Without a code it was killed by a signal; shells say 128 and more then.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(128))
}
