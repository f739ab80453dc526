//! Freezes processes and lets them continue.

use devstack::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

/// A process of a test.
pub trait Process {
    /// Returns its process id; `None` when it has ended.
    fn number(&self) -> Option<u32>;
}

impl Process for Server {
    fn number(&self) -> Option<u32> {
        self.pid()
    }
}

impl Process for Child {
    fn number(&self) -> Option<u32> {
        self.id()
    }
}

/// Freezes a process until [`wake`].
///
/// # Panics
/// When it has ended.
pub fn freeze(process: &impl Process) {
    send(process, Signal::SIGSTOP);
}

/// Lets a frozen process continue.
///
/// # Panics
/// When it has ended.
pub fn wake(process: &impl Process) {
    send(process, Signal::SIGCONT);
}

fn send(process: &impl Process, signal: Signal) {
    let number = process.number().expect("the process runs");
    kill(Pid::from_raw(number.try_into().unwrap()), signal).unwrap();
}
