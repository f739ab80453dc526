//! The readiness check that events reach the queue.
//!
//! It is not enough that Kafka and Postgres answer: a consumer may wait for its group, and a batch for a lock.

use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use rdkafka::message::OwnedMessage;
use service::Check;
use tokio::time::{Instant, sleep};

use super::consumer::Consumer;

/// How often to check.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a batch may take, including its retries.
const MAX_BATCH_TIME: Duration = Duration::from_secs(5);

/// How long a consumer may be outside of its group. A few seconds are normal when another one joins or dies.
const MAX_OUTSIDE: Duration = Duration::from_secs(15);

/// How long until a consumer that does not rejoin its group is replaced.
const REPLACE_AFTER: Duration = Duration::from_secs(30);

/// Tracks progress and updates the check.
pub(super) struct Liveness {
    check: Check,
    /// When the current batch began.
    busy_since: Option<Instant>,
    /// Why the current batch is being retried.
    failure: Option<String>,
    outside_since: Option<Instant>,
}

impl Liveness {
    /// Starts as ready, because the engines have separate checks.
    pub(super) fn new(check: Check) -> Self {
        check.ready();
        Self { check, busy_since: None, failure: None, outside_since: None }
    }

    /// Polls; returns `None` when the consumer has been outside of its group for so long that it must be replaced.
    pub(super) async fn poll(
        &mut self,
        consumer: &Consumer,
        limit: usize,
        linger: Duration,
    ) -> Option<Vec<OwnedMessage>> {
        let mut poll = pin!(consumer.poll(limit, linger));
        loop {
            tokio::select! {
                polled = &mut poll => return Some(polled),
                () = sleep(CHECK_INTERVAL) => {}
            }
            // Nothing is read outside of the group, so cancelling the poll loses nothing.
            if !self.idle(consumer.is_member()) {
                return None;
            }
        }
    }

    /// Records that nothing was read for a while; returns whether the consumer may continue.
    fn idle(&mut self, is_member: bool) -> bool {
        if is_member {
            self.outside_since = None;
            self.done();
            return true;
        }
        let outside = self.outside_since.get_or_insert_with(Instant::now).elapsed();
        if outside > MAX_OUTSIDE {
            self.check.unready(format!("outside of its consumer group for {} s", outside.as_secs()));
        }
        let may_go_on = outside <= REPLACE_AFTER;
        if !may_go_on {
            self.outside_since = None;
        }
        may_go_on
    }

    /// Waits for a step of a batch, or of preparing for one.
    pub(super) async fn during<T, E: Display>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.busy_since.get_or_insert_with(Instant::now);
        let mut work = pin!(work);
        let outcome = loop {
            tokio::select! {
                outcome = &mut work => break outcome,
                () = sleep(CHECK_INTERVAL) => self.is_busy(),
            }
        };
        if let Err(error) = &outcome {
            self.failure = Some(error.to_string());
        }
        self.is_busy();
        outcome
    }

    fn is_busy(&mut self) {
        let busy = self.busy_since.map(|since| since.elapsed()).unwrap_or_default();
        if busy > MAX_BATCH_TIME {
            let why = self.failure.as_deref().unwrap_or("no answer");
            self.check.unready(format!("no batch was stored for {} s: {why}", busy.as_secs()));
        }
    }

    /// Records that a batch is done.
    pub(super) fn done(&mut self) {
        (self.busy_since, self.failure) = (None, None);
        self.check.ready();
    }
}

#[cfg(test)]
mod tests {
    use service::{Health, Shutdown};

    use super::*;

    fn watched() -> (Health, Liveness) {
        let health = Health::new(&Shutdown::new(Duration::ZERO));
        let liveness = Liveness::new(health.check("part"));
        (health, liveness)
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_or_failing_batch_is_not_ready_until_it_is_stored() {
        let (health, mut liveness) = watched();
        assert!(health.report().ready);
        let slow = async {
            sleep(MAX_BATCH_TIME * 2).await;
            assert!(!health.report().ready, "a slow batch is reported before it ends");
            Err::<(), _>("no answer")
        };
        assert_eq!(liveness.during(slow).await, Err("no answer"));
        assert_eq!(liveness.during(async { Ok::<_, &str>(()) }).await, Ok(()));
        assert!(!health.report().ready, "a successful step is not a stored batch");
        liveness.done();
        assert!(health.report().ready);
        for _ in 0..2 {
            assert!(health.report().ready, "a single failure is not reported");
            assert_eq!(liveness.during(async { Err::<(), _>("fenced") }).await, Err("fenced"));
            sleep(MAX_BATCH_TIME / 2 + CHECK_INTERVAL).await;
        }
        assert_eq!(liveness.during(async { Err::<(), _>("fenced") }).await, Err("fenced"));
        assert!(!health.report().ready);
        assert!(liveness.idle(true), "nothing is left to do");
        assert!(health.report().ready);
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_outside_of_its_group_is_reported_and_replaced() {
        let (health, mut liveness) = watched();
        assert!(liveness.idle(false));
        sleep(MAX_OUTSIDE / 2).await;
        assert!(liveness.idle(false) && health.report().ready);
        sleep(MAX_OUTSIDE).await;
        assert!(liveness.idle(false) && !health.report().ready);
        sleep(REPLACE_AFTER).await;
        assert!(!liveness.idle(false));
        assert!(liveness.idle(false) && !health.report().ready, "the next consumer gets the same time");
        assert!(liveness.idle(true) && health.report().ready);
    }
}
