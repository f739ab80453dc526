//! Programs that run to their end, such as installers and compilers.

use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use tokio::task::JoinHandle;

use super::family::{kill_family, pid_of};
use super::spawn::spawn;
use super::tail::last_lines;
use crate::Error;

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// [`Error::Failed`] with the end of both outputs when it does not succeed.
pub async fn run(what: &str, command: Command) -> Result<Vec<u8>, Error> {
    run_with_input(what, command, Vec::new()).await
}

/// Like [`run`], with text on the program's standard input.
///
/// # Errors
/// As [`run`].
pub async fn run_with_input(what: &str, mut command: Command, input: Vec<u8>) -> Result<Vec<u8>, Error> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = Attached::spawn(command)?;
    let child = &mut program.child;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // One thread per pipe, so that no pipe blocks another; all end with the program.
    let writer = tokio::task::spawn_blocking(move || {
        // A program that stops reading reports the reason itself.
        let _ = stdin.map(|mut pipe| pipe.write_all(&input));
    });
    let (stdout, stderr) = (spawn_read(stdout), spawn_read(stderr));
    let status = program.end().await?;
    let _ = writer.await;
    let mut output = stdout.await.unwrap_or_default();
    if status.success() {
        return Ok(output);
    }
    output.extend(stderr.await.unwrap_or_default());
    let output = last_lines(&String::from_utf8_lossy(&output), 20);
    Err(Error::Failed { what: what.to_owned(), status, output })
}

/// Reads a pipe to its end or to an error.
fn spawn_read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        bytes
    })
}

/// Runs a program, such as cargo, to its end; it shares this process's output.
///
/// Dropping the future kills the program with all its descendants.
///
/// # Errors
/// [`Error::Spawn`] when it cannot be run.
pub async fn run_attached(mut command: Command) -> Result<ExitStatus, Error> {
    command.stdin(Stdio::null());
    Attached::spawn(command)?.end().await
}

/// A program that runs to its end; killed when the wait for it is abandoned.
struct Attached {
    name: PathBuf,
    child: Child,
}

impl Attached {
    fn spawn(mut command: Command) -> Result<Self, Error> {
        let name = PathBuf::from(command.get_program());
        command.process_group(0);
        match spawn(command, Signal::SIGKILL) {
            Ok(child) => Ok(Self { name, child }),
            Err(source) => Err(Error::Spawn { program: name, source }),
        }
    }

    async fn end(mut self) -> Result<ExitStatus, Error> {
        let pid = self.child.id();
        // Fails when the runtime ends; the next line waits too.
        let _ = tokio::task::spawn_blocking(move || await_end(pid)).await;
        self.child.wait().map_err(|source| Error::Spawn { program: self.name.clone(), source })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            kill_family(self.child.id());
            let _ = self.child.wait();
        }
    }
}

/// Blocks until the process has ended, without reaping it.
pub(super) fn await_end(pid: u32) {
    while waitid(Id::Pid(pid_of(pid)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
}
