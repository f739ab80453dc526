//! Whether it is this process's turn to run upkeep.

use std::future::Future;

use service::Shutdown;
use tokio::sync::watch;

/// Tells whether this process must run upkeep; see [`crate::pipeline::intake`].
#[derive(Debug, Clone)]
pub struct Turn {
    held: watch::Receiver<bool>,
    shutdown: Shutdown,
}

impl Turn {
    /// It is this process's turn while `held` is true, until a stop is requested.
    pub fn new(held: watch::Receiver<bool>, shutdown: Shutdown) -> Self {
        Self { held, shutdown }
    }

    /// Waits for the turn. Returns false when a stop was requested.
    pub async fn begins(&mut self) -> bool {
        tokio::select! {
            () = self.shutdown.wait() => false,
            // The sender lives as long as the intake does.
            held = self.held.wait_for(|held| *held) => held.is_ok(),
        }
    }

    /// Works until the turn ends. Returns whether another process has it then; otherwise a stop was requested.
    pub async fn ends_during(&mut self, work: impl Future<Output = ()>) -> bool {
        tokio::select! {
            () = self.shutdown.wait() => false,
            _ = self.held.wait_for(|held| !*held) => true,
            () = work => false,
        }
    }
}
