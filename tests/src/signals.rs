//! Signals to programs. A [`Server`] has `pause` and `resume`.

use devstack::Server;
use devstack::process::{Stopped, tail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

/// Stops a program with SIGTERM.
///
/// # Panics
/// When it does not end by itself with exit code 0.
pub async fn stop(server: &Server) {
    match server.stop().await {
        Some(Stopped::Ended(status)) if status.success() => {}
        other => panic!("{} did not exit with 0: {other:?}\n{}", server.name(), log_tail(server)),
    }
}

/// Returns the end of a program's log, for a failing test.
pub fn log_tail(server: &Server) -> String {
    tail(&server.launch().log, 30)
}

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
