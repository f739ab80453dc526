//! `up --detach`: starts the stack in the background and returns when it is ready.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use devstack::process::detach;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli::Up;
use crate::folder::Folder;
use crate::logs::read_new_lines;
use crate::terminal::{Interrupts, print_line};
use crate::{control, demo_account};

/// How often to read the stack's output.
const INTERVAL: Duration = Duration::from_millis(100);

/// Starts the stack in a new session and shows its output until it is ready or has failed.
pub(crate) async fn up(folder: &Folder, options: &Up) -> anyhow::Result<ExitCode> {
    folder.ensure_none_other_runs()?;
    if folder.is_running()? {
        let status = control::status(folder).await?;
        print_line(&status.table());
        if status.ready {
            return Ok(ExitCode::SUCCESS);
        }
        bail!("the stack is already running, but not ready");
    }
    let mut interrupts = Interrupts::new()?;
    let log = folder.log("devstack");
    folder.rotate_logs(["devstack"]);
    let log_file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&log)?;
    let mut stack = spawn(folder, options, &log_file)?;
    let mut position = 0;
    loop {
        let ended = stack.try_wait()?;
        // Checked before the log is read, so that the last lines are shown.
        let ready = ended.is_none() && is_ready(&log);
        let output = read_new_lines(&log, &mut position);
        if !output.is_empty() {
            print_line(output.trim_end());
        }
        if let Some(status) = ended {
            bail!("the stack did not start ({status}); its full output is in {}", log.display());
        }
        if ready {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            // The stack stops what it has started; its output is shown until it ends.
            () = interrupts.next() => kill(Pid::from_raw(stack.id().cast_signed()), Signal::SIGTERM)?,
        }
    }
}

/// Returns whether the stack has printed the last line of its start.
fn is_ready(log: &std::path::Path) -> bool {
    fs::read_to_string(log).is_ok_and(|text| text.contains(demo_account::final_line(true)))
}

fn spawn(folder: &Folder, options: &Up, log: &File) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe().context("could not find this program")?);
    command
        .args(["up", "--in-background"])
        .args(["--listen", &options.listen.to_string()])
        .env("DEVSTACK_ROOT", folder.repository());
    if options.cluster {
        command.arg("--cluster");
    }
    if options.release {
        command.arg("--release");
    }
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    detach(&mut command);
    command.spawn().context("could not start the stack")
}
