//! Freezes programs that a test runs itself; a [`devstack::Server`] has `pause` and `resume`.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

/// Freezes a process until [`wake`].
///
/// # Panics
/// When it has ended.
pub fn freeze(process: &Child) {
    send(process, Signal::SIGSTOP);
}

/// Lets a frozen process continue.
///
/// # Panics
/// When it has ended.
pub fn wake(process: &Child) {
    send(process, Signal::SIGCONT);
}

fn send(process: &Child, signal: Signal) {
    let number = process.id().expect("the process runs");
    kill(Pid::from_raw(number.try_into().unwrap()), signal).unwrap();
}
