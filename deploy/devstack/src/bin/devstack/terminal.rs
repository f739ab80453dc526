//! Output lines and interrupts.

use std::io::Write as _;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Prints a line on standard output.
pub(crate) fn print_line(line: &str) {
    // Fails when the reader is gone, as with `| head`.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints a line on standard error.
pub(crate) fn print_error(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// The signals that request a stop: SIGINT, SIGTERM and SIGHUP.
pub(crate) struct Interrupts {
    signals: [Signal; 3],
}

impl Interrupts {
    /// Handles these signals from now on instead of ending the process.
    pub(crate) fn new() -> std::io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Self { signals: [interrupt?, terminate?, hangup?] })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
