//! Readiness: the dependencies of a process and their state.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::{sleep, timeout};

use crate::Shutdown;

/// The checks of a process, reported at `/readyz`.
///
/// Clones share the same checks.
#[derive(Debug, Clone)]
pub struct Health {
    checks: Arc<Mutex<BTreeMap<&'static str, State>>>,
    shutdown: Shutdown,
}

#[derive(Debug, Clone, Serialize)]
struct State {
    ready: bool,
    /// Whether the process is ready only while this check is.
    required: bool,
    detail: String,
}

/// The response of `/readyz`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether every required check is ready and no shutdown was requested.
    pub ready: bool,
    checks: BTreeMap<&'static str, State>,
}

impl Health {
    /// Returns a registry without checks, which is ready until a shutdown is requested.
    #[must_use]
    pub fn new(shutdown: &Shutdown) -> Self {
        Self { checks: Arc::default(), shutdown: shutdown.clone() }
    }

    /// Adds a check, which is not ready yet. The process is ready only while this check is.
    #[must_use]
    pub fn check(&self, name: &'static str) -> Check {
        self.add(name, true)
    }

    /// Adds a check of something without which the process still answers requests. It is reported like the others, but
    /// does not decide whether the process is ready.
    #[must_use]
    pub fn informational(&self, name: &'static str) -> Check {
        self.add(name, false)
    }

    fn add(&self, name: &'static str, required: bool) -> Check {
        let state = State { ready: false, required, detail: NOT_CHECKED.to_owned() };
        self.checks.lock().insert(name, state);
        set_gauge(name, false);
        Check { health: self.clone(), name, required }
    }

    /// Returns the current state of all checks.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut checks = self.checks.lock().clone();
        // Load balancers must send new work elsewhere before the listener closes.
        if self.shutdown.requested() {
            checks.insert("process", State { ready: false, required: true, detail: "draining".to_owned() });
        }
        Report { ready: checks.values().all(|check| check.ready || !check.required), checks }
    }
}

/// A dependency of a process, by its name in `/readyz`, logs and metric `hopline_check_ready`.
#[derive(Debug, Clone)]
pub struct Check {
    health: Health,
    name: &'static str,
    required: bool,
}

impl Check {
    /// Reports the dependency as ready.
    pub fn ready(&self) {
        self.ready_with(OK);
    }

    /// Reports the dependency as ready, with a detail for `/readyz`.
    pub fn ready_with(&self, detail: impl Into<String>) {
        self.set(true, detail.into());
    }

    /// Reports the dependency as not ready; `detail` is the reason, without secrets.
    pub fn unready(&self, detail: impl Into<String>) {
        self.set(false, detail.into());
    }

    /// Returns whether the last report was that it is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.health.checks.lock().get(self.name).is_some_and(|state| state.ready)
    }

    fn set(&self, ready: bool, detail: String) {
        let Self { name, required, .. } = *self;
        let state = State { ready, required, detail: detail.clone() };
        let before = self.health.checks.lock().insert(name, state);
        set_gauge(name, ready);
        // Probes repeat; only changes are logged.
        let changed =
            before.is_none_or(|before| before.ready != ready || (!ready && before.detail == NOT_CHECKED));
        match (changed, ready) {
            (true, true) => tracing::info!(check = name, "{name} is ready"),
            (true, false) => tracing::warn!(check = name, detail, "{name} is not ready: {detail}"),
            (false, _) => {}
        }
    }
}

fn set_gauge(check: &'static str, ready: bool) {
    metrics::gauge!("hopline_check_ready", "check" => check).set(if ready { 1.0 } else { 0.0 });
}

/// The detail of a ready check without anything to report.
pub(crate) const OK: &str = "ok";

const NOT_CHECKED: &str = "not checked yet";

/// Pause after a successful probe.
pub(crate) const READY_INTERVAL: Duration = Duration::from_secs(5);

/// Pause after a failed probe.
const UNREADY_INTERVAL: Duration = Duration::from_secs(1);

const PROBE_TIMEOUT: Duration = Duration::from_secs(4);

/// Probes a dependency until a shutdown is requested, and reports each result to its check.
///
/// `probe` returns the detail of the check or the error, both without secrets.
pub async fn watch<F, T, E>(check: Check, shutdown: Shutdown, probe: impl FnMut() -> F)
where
    F: Future<Output = Result<T, E>>,
    T: Into<String>,
    E: Display,
{
    watch_every(READY_INTERVAL, check, shutdown, probe).await;
}

/// Like [`watch`], with another pause after a successful probe.
pub(crate) async fn watch_every<F, T, E>(
    interval: Duration,
    check: Check,
    shutdown: Shutdown,
    mut probe: impl FnMut() -> F,
) where
    F: Future<Output = Result<T, E>>,
    T: Into<String>,
    E: Display,
{
    let probes = async {
        loop {
            let pause = match timeout(PROBE_TIMEOUT, probe()).await {
                Ok(Ok(detail)) => {
                    check.ready_with(detail);
                    interval
                }
                Ok(Err(error)) => {
                    check.unready(error.to_string());
                    UNREADY_INTERVAL
                }
                Err(_) => {
                    check.unready(format!("no answer within {} seconds", PROBE_TIMEOUT.as_secs()));
                    UNREADY_INTERVAL
                }
            };
            sleep(pause).await;
        }
    };
    tokio::select! {
        () = shutdown.wait() => {}
        () = probes => {}
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
    fn an_informational_check_does_not_affect_readiness() {
        let health = Health::new(&Shutdown::new(Duration::ZERO));
        let (spool, kafka) = (health.check("spool"), health.informational("kafka"));
        spool.ready();
        kafka.unready("no broker answers");
        let report = serde_json::to_value(health.report()).unwrap();
        assert_eq!(
            report,
            serde_json::json!({"ready": true, "checks": {
                "kafka": {"ready": false, "required": false, "detail": "no broker answers"},
                "spool": {"ready": true, "required": true, "detail": "ok"},
            }})
        );
        spool.unready("full");
        assert!(!health.report().ready);
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
