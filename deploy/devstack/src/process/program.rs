//! Programs that run to their end: installers, compilers, preparations.

use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use tokio::task::JoinHandle;

use super::family::{kill_family, pid_of};
use super::last_lines;
use super::spawn::spawn;
use crate::Error;

/// Runs a preparing program to its end and returns what it printed on standard output.
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
    // Each pipe has a thread, so that none waits for another; all end with the program.
    let writer = tokio::task::spawn_blocking(move || {
        // A program that does not read to the end says itself what it disliked.
        let _ = stdin.map(|mut pipe| pipe.write_all(&input));
    });
    let (printed, complained) = (spawn_read(stdout), spawn_read(stderr));
    let status = program.end().await?;
    let _ = writer.await;
    let mut printed = printed.await.unwrap_or_default();
    if status.success() {
        return Ok(printed);
    }
    printed.extend(complained.await.unwrap_or_default());
    let output = last_lines(&String::from_utf8_lossy(&printed), 20);
    Err(Error::Failed { what: what.to_owned(), status, output })
}

/// Reads a pipe to its end; what came before an error is what there is.
fn spawn_read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        bytes
    })
}

/// Runs a program that talks to our own output, such as cargo, to its end.
///
/// Like all programs here it has a separate process group, and is killed with everything under it when the future
/// is dropped.
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
        // It fails when the runtime ends; the wait below tells the rest.
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

/// Blocks until the process has ended, and leaves it to be reaped under the lock.
pub(super) fn await_end(pid: u32) {
    while waitid(Id::Pid(pid_of(pid)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
}
