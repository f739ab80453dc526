//! The request to stop, and how much time is left to do so.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// The deadline passed before the work was finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the shutdown deadline passed")]
pub struct DeadlinePassed;

/// One request to stop, shared by everything that runs in a process.
///
/// Clones are handles to the same request. Once requested it stays requested, and its deadline is fixed.
#[derive(Clone)]
pub struct Shutdown {
    shared: Arc<Shared>,
}

struct Shared {
    token: CancellationToken,
    drain: Duration,
    deadline: OnceLock<Instant>,
    held: Mutex<BTreeMap<u64, &'static str>>,
}

impl Shutdown {
    /// Makes a shutdown that nobody but [`Shutdown::request`] triggers.
    ///
    /// `drain` is the time between the request and the deadline.
    #[must_use]
    pub fn new(drain: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                token: CancellationToken::new(),
                drain,
                deadline: OnceLock::new(),
                held: Mutex::default(),
            }),
        }
    }

    /// Makes a shutdown that the first SIGTERM or SIGINT triggers.
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

    /// Requests the stop; the deadline counts from the first call.
    pub fn request(&self) {
        self.shared.deadline.get_or_init(|| Instant::now() + self.shared.drain);
        self.shared.token.cancel();
    }

    /// Returns whether the stop was requested.
    #[must_use]
    pub fn requested(&self) -> bool {
        self.shared.token.is_cancelled()
    }

    /// Waits until the stop is requested.
    pub async fn wait(&self) {
        self.shared.token.cancelled().await;
    }

    /// Returns when everything must be finished; `None` as long as no stop is requested.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.shared.deadline.get().copied()
    }

    /// Waits until the stop was requested and its deadline has passed.
    pub async fn wait_deadline(&self) {
        self.wait().await;
        // The deadline is set before the token is cancelled.
        if let Some(deadline) = self.deadline() {
            sleep_until(deadline).await;
        }
    }

    /// Waits until the stop was requested and three quarters of its time have passed.
    ///
    /// Clients are cut then: one that reads slowly must not take the time to flush what all of them caused.
    pub async fn wait_clients_deadline(&self) {
        self.wait().await;
        if let Some(deadline) = self.deadline() {
            sleep_until(deadline - self.shared.drain / 4).await;
        }
    }

    /// Runs `work` to its end or to the deadline, whichever comes first.
    ///
    /// Without a request to stop there is no deadline.
    ///
    /// # Errors
    /// [`DeadlinePassed`] when the work was cut.
    pub async fn within_deadline<F: Future>(&self, work: F) -> Result<F::Output, DeadlinePassed> {
        tokio::select! {
            biased;
            output = work => Ok(output),
            () = self.wait_deadline() => Err(DeadlinePassed),
        }
    }

    /// Names a piece of work that the process should finish before it exits.
    ///
    /// It counts as unfinished until the returned guard is dropped.
    #[must_use]
    pub fn hold(&self, name: &'static str) -> Hold {
        let mut held = self.held();
        let id = held.last_key_value().map_or(0, |(last, _)| last + 1);
        held.insert(id, name);
        Hold { shutdown: self.clone(), id }
    }

    /// Returns the names of the work that is still held.
    #[must_use]
    pub fn unfinished(&self) -> Vec<&'static str> {
        self.held().values().copied().collect()
    }

    /// Returns a token that is cancelled when the stop is requested, for code that takes such a token.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        // A child, so that its holder cannot stop the process by cancelling it.
        self.shared.token.child_token()
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, &'static str>> {
        self.shared.held.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Unfinished work, named for the log line of a missed deadline; see [`Shutdown::hold`].
#[derive(Debug)]
pub struct Hold {
    shutdown: Shutdown,
    id: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shutdown.held().remove(&self.id);
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
        assert_eq!(shutdown.within_deadline(async { 7 }).await, Ok(7));
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

    #[tokio::test]
    async fn work_is_cut_at_the_deadline() {
        let shutdown = Shutdown::new(Duration::from_millis(1));
        let requested = shutdown.clone();
        let cut = tokio::spawn(async move { requested.within_deadline(std::future::pending::<()>()).await });
        shutdown.request();
        assert_eq!(cut.await.unwrap(), Err(DeadlinePassed));
    }

    #[tokio::test]
    async fn clients_are_cut_before_the_deadline() {
        let shutdown = Shutdown::new(Duration::from_millis(400));
        shutdown.request();
        shutdown.wait_clients_deadline().await;
        let deadline = shutdown.deadline().unwrap();
        assert!(Instant::now() >= deadline - Duration::from_millis(100));
        shutdown.wait_deadline().await;
        assert!(Instant::now() >= deadline);
    }

    #[tokio::test]
    async fn unfinished_work_is_named_until_its_guard_is_dropped() {
        let shutdown = Shutdown::new(Duration::ZERO);
        let flush = shutdown.hold("flush");
        let _commit = shutdown.hold("commit");
        assert_eq!(shutdown.unfinished(), ["flush", "commit"]);
        drop(flush);
        assert_eq!(shutdown.unfinished(), ["commit"]);
    }
}
