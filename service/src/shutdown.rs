//! The shutdown request of a process and its deadline.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, io};

use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// The shutdown of a process. Clones share one request.
///
/// A request cannot be withdrawn, and its deadline does not change.
#[derive(Clone)]
pub struct Shutdown {
    shared: Arc<Shared>,
}

struct Shared {
    token: CancellationToken,
    drain: Duration,
    deadline: OnceLock<Instant>,
    unfinished: Mutex<BTreeMap<u64, &'static str>>,
}

impl Shutdown {
    /// Returns a shutdown that only [`Shutdown::request`] triggers.
    ///
    /// `drain` is the time from the request to the deadline.
    #[must_use]
    pub fn new(drain: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                token: CancellationToken::new(),
                drain,
                deadline: OnceLock::new(),
                unfinished: Mutex::default(),
            }),
        }
    }

    /// Returns a shutdown that the first SIGTERM or SIGINT triggers.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn on_signals(drain: Duration) -> io::Result<Self> {
        let shutdown = Self::new(drain);
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let requested = shutdown.clone();
        tokio::spawn(async move {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            tracing::info!(signal = name, drain_seconds = drain.as_secs_f64(), "stopping on {name}");
            requested.request();
        });
        Ok(shutdown)
    }

    /// Requests the shutdown; the deadline counts from the first call.
    pub fn request(&self) {
        self.shared.deadline.get_or_init(|| Instant::now() + self.shared.drain);
        self.shared.token.cancel();
    }

    /// Returns whether the shutdown was requested.
    #[must_use]
    pub fn requested(&self) -> bool {
        // Not the token, which has a lock that all requests would share.
        self.shared.deadline.get().is_some()
    }

    /// Waits until the shutdown is requested.
    pub async fn wait(&self) {
        self.shared.token.cancelled().await;
    }

    /// Returns the time by which all work must be finished; `None` before the request.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.shared.deadline.get().copied()
    }

    /// Waits for the request and then for its deadline.
    pub async fn wait_deadline(&self) {
        self.wait().await;
        // Always set: `request` sets it before it cancels the token.
        if let Some(deadline) = self.deadline() {
            sleep_until(deadline).await;
        }
    }

    /// Waits for the request and then for three quarters of the time until its deadline.
    ///
    /// Client connections are closed then, which leaves the process time to flush its data.
    pub async fn wait_clients_deadline(&self) {
        self.wait().await;
        if let Some(deadline) = self.deadline() {
            sleep_until(deadline - self.shared.drain / 4).await;
        }
    }

    /// Registers work that the process should finish before it exits.
    ///
    /// The work counts as unfinished until the returned guard is dropped.
    #[must_use]
    pub fn track_work(&self, name: &'static str) -> WorkGuard {
        let mut unfinished = self.shared.unfinished.lock();
        let id = unfinished.last_key_value().map_or(0, |(last, _)| last + 1);
        unfinished.insert(id, name);
        WorkGuard { shutdown: self.clone(), id }
    }

    /// Returns the names of the unfinished work.
    #[must_use]
    pub fn unfinished(&self) -> Vec<&'static str> {
        self.shared.unfinished.lock().values().copied().collect()
    }

    /// Returns a token that is cancelled when the shutdown is requested.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        // A child: cancelling it does not stop the process.
        self.shared.token.child_token()
    }
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Shutdown")
            .field("requested", &self.requested())
            .field("unfinished", &self.unfinished())
            .finish_non_exhaustive()
    }
}

/// Marks work as unfinished until it is dropped; see [`Shutdown::track_work`].
#[derive(Debug)]
pub struct WorkGuard {
    shutdown: Shutdown,
    id: u64,
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.shutdown.shared.unfinished.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_is_no_deadline_before_the_request() {
        let shutdown = Shutdown::new(Duration::ZERO);
        assert!(!shutdown.requested());
        assert_eq!(shutdown.deadline(), None);
    }

    #[tokio::test]
    async fn the_deadline_counts_from_the_first_request() {
        let shutdown = Shutdown::new(Duration::from_secs(5));
        shutdown.request();
        let first = shutdown.deadline();
        shutdown.request();
        assert!(shutdown.requested());
        assert!(first.is_some());
        assert_eq!(shutdown.deadline(), first);
    }

    #[tokio::test(start_paused = true)]
    async fn the_clients_deadline_is_before_the_deadline() {
        let shutdown = Shutdown::new(Duration::from_millis(400));
        shutdown.request();
        shutdown.wait_clients_deadline().await;
        let deadline = shutdown.deadline().unwrap();
        assert!((deadline - Duration::from_millis(100)..deadline).contains(&Instant::now()));
        shutdown.wait_deadline().await;
        assert!(Instant::now() >= deadline);
    }

    #[tokio::test]
    async fn work_is_unfinished_until_its_guard_is_dropped() {
        let shutdown = Shutdown::new(Duration::ZERO);
        let flush = shutdown.track_work("flush");
        let _commit = shutdown.track_work("commit");
        assert_eq!(shutdown.unfinished(), ["flush", "commit"]);
        drop(flush);
        assert_eq!(shutdown.unfinished(), ["commit"]);
    }
}
