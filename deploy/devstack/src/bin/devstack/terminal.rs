//! Lines for people, and their Ctrl-C.

use std::io::Write as _;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Prints a line.
pub(crate) fn say(line: &str) {
    // A reader that went away, as `| head` does, is no fault of ours.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints a line on standard error.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// The signals that ask us to stop.
pub(crate) struct Interrupts {
    signals: [Signal; 3],
}

impl Interrupts {
    /// From now on these signals are ours to handle.
    pub(crate) fn new() -> std::io::Result<Self> {
        // Hangup: the terminal was closed.
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Self { signals: [interrupt?, terminate?, hangup?] })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
