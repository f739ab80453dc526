//! What a process needs to do its work, and whether it has it.

use std::{
    collections::BTreeMap,
    fmt::Display,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Serialize;
use tokio::time::{sleep, timeout};

use crate::Shutdown;

/// The checks of one process, shown at `/readyz`.
///
/// Clones are handles to the same checks.
#[derive(Debug, Clone)]
pub struct Health {
    checks: Arc<Mutex<BTreeMap<&'static str, State>>>,
    shutdown: Shutdown,
}

#[derive(Debug, Clone, Serialize)]
struct State {
    ready: bool,
    detail: String,
}

/// The answer of `/readyz`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether every check is ready and no stop was requested.
    pub ready: bool,
    checks: BTreeMap<&'static str, State>,
}

impl Health {
    /// Makes a registry without checks, which is ready until a stop is requested.
    #[must_use]
    pub fn new(shutdown: &Shutdown) -> Self {
        Self { checks: Arc::default(), shutdown: shutdown.clone() }
    }

    /// Adds a check, which is not ready until it says so, or returns the one of that name.
    #[must_use]
    pub fn check(&self, name: &'static str) -> Check {
        self.checks()
            .entry(name)
            .or_insert_with(|| State { ready: false, detail: "not checked yet".to_owned() });
        Check { health: self.clone(), name }
    }

    /// Returns the state of all checks at this moment.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut checks = self.checks().clone();
        // Balancers must send new work elsewhere before the listener closes.
        if self.shutdown.requested() {
            checks.insert("process", State { ready: false, detail: "draining".to_owned() });
        }
        Report { ready: checks.values().all(|check| check.ready), checks }
    }

    fn checks(&self) -> MutexGuard<'_, BTreeMap<&'static str, State>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One thing that a process needs, named in `/readyz`, in the log and in the metric `hopline_check_ready`.
#[derive(Debug, Clone)]
pub struct Check {
    health: Health,
    name: &'static str,
}

impl Check {
    /// States that the process has what it needs.
    pub fn ready(&self) {
        self.ready_with(OK);
    }

    /// States that the process has what it needs, with a detail worth showing.
    pub fn ready_with(&self, detail: impl Into<String>) {
        self.set(true, detail.into());
    }

    /// States that something is missing; `detail` says what, without secrets.
    pub fn unready(&self, detail: impl Into<String>) {
        self.set(false, detail.into());
    }

    /// Returns whether the last statement was that it is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.health.checks().get(self.name).is_some_and(|state| state.ready)
    }

    fn set(&self, ready: bool, detail: String) {
        let name = self.name;
        let state = State { ready, detail: detail.clone() };
        let before = self.health.checks().insert(name, state);
        metrics::gauge!("hopline_check_ready", "check" => name).set(if ready { 1.0 } else { 0.0 });
        // Probes repeat themselves; the log keeps the changes only.
        let changed = before
            .is_none_or(|before| before.ready != ready || (!ready && before.detail == "not checked yet"));
        match (changed, ready) {
            (true, true) => tracing::info!(check = name, "{name} is ready"),
            (true, false) => tracing::warn!(check = name, detail, "{name} is not ready: {detail}"),
            (false, _) => {}
        }
    }
}

/// The detail of what has nothing worth showing.
pub(crate) const OK: &str = "ok";

/// Time between two probes of something that answers, and of something that does not.
const PROBE_INTERVALS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(1)];

/// How long a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(4);

/// Probes a dependency until a stop is requested, and states the outcome in its check.
///
/// `probe` returns a detail worth showing, or what is wrong, both without secrets.
pub async fn watch<F, T, E>(check: Check, shutdown: Shutdown, mut probe: impl FnMut() -> F)
where
    F: Future<Output = Result<T, E>>,
    T: Into<String>,
    E: Display,
{
    let rounds = async {
        loop {
            let [ready, unready] = PROBE_INTERVALS;
            let pause = match timeout(PROBE_TIMEOUT, probe()).await {
                Ok(Ok(detail)) => {
                    check.ready_with(detail);
                    ready
                }
                Ok(Err(error)) => {
                    check.unready(error.to_string());
                    unready
                }
                Err(_) => {
                    check.unready("no answer in time");
                    unready
                }
            };
            sleep(pause).await;
        }
    };
    tokio::select! {
        () = shutdown.wait() => {}
        () = rounds => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_every_check_is() {
        let health = Health::new(&Shutdown::new(Duration::ZERO));
        let (kafka, postgres) = (health.check("kafka"), health.check("postgres"));
        assert!(!health.report().ready);
        kafka.ready();
        assert!(!health.report().ready);
        postgres.ready();
        assert!(health.report().ready);
        kafka.unready("no broker answers");
        assert!(!health.report().ready);
        assert!(!kafka.is_ready());
        assert!(postgres.is_ready());
    }

    #[test]
    fn a_draining_process_is_not_ready() {
        let shutdown = Shutdown::new(Duration::ZERO);
        let health = Health::new(&shutdown);
        assert!(health.report().ready);
        shutdown.request();
        let report = serde_json::to_value(health.report()).unwrap();
        assert_eq!(report["ready"], false);
        assert_eq!(report["checks"]["process"]["detail"], "draining");
    }
}
