//! `up --detach`: starts the stack in the background and returns when it is ready.

use std::fs::{self, File};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use devstack::process::detach;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli::Up;
use crate::folder::{Folder, read_on};
use crate::status;
use crate::terminal::{Interrupts, say};

/// How often to look whether the stack has something to say.
const LOOK: Duration = Duration::from_millis(100);

/// Starts the stack in a new session and shows what it prints until it is ready or has failed.
pub(crate) async fn up(folder: &Folder, options: &Up) -> anyhow::Result<ExitCode> {
    if folder.is_running()? {
        let status = status::of(folder).await?;
        say(&status.table());
        if status.ready {
            return Ok(ExitCode::SUCCESS);
        }
        bail!("the stack is already running, but not ready");
    }
    let mut interrupts = Interrupts::new()?;
    let log = folder.log("devstack");
    let _ = fs::rename(&log, log.with_extension("log.1"));
    let mut stack = spawn(folder, options, &File::create(&log)?)?;
    let mut position = 0;
    loop {
        let ended = stack.try_wait()?;
        // Looked at before the log, so that its last words are shown.
        let ready = ended.is_none() && is_ready(&log);
        let news = read_on(&log, &mut position);
        if !news.is_empty() {
            say(news.trim_end());
        }
        if let Some(status) = ended {
            bail!("the stack did not start ({status}); its full output is in {}", log.display());
        }
        if ready {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            // The stack is half up: it takes itself down, and we show how.
            () = interrupts.next() => kill(Pid::from_raw(stack.id().cast_signed()), Signal::SIGTERM)?,
        }
    }
}

/// Whether the stack has said its last words on starting.
fn is_ready(log: &std::path::Path) -> bool {
    fs::read_to_string(log).is_ok_and(|text| text.contains(crate::demo::last_words(true)))
}

fn spawn(folder: &Folder, options: &Up, log: &File) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe().context("could not find this program")?);
    command
        .args(["up", "--in-background"])
        .args(["--listen", &options.listen.to_string()])
        .env("DEVSTACK_ROOT", folder.repository());
    if options.release {
        command.arg("--release");
    }
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    detach(&mut command);
    command.spawn().context("could not start the stack")
}
