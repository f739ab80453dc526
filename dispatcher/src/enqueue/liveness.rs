//! Whether events get on into the queue, as `/readyz` tells.
//!
//! That Kafka and Postgres answer does not say so: a consumer may wait for its group, and a batch for a lock.

use std::{fmt::Display, pin::pin, time::Duration};

use rdkafka::message::OwnedMessage;
use service::Check;
use tokio::time::{Instant, sleep};

use super::consumer::Consumer;

/// How often to look.
const LOOK: Duration = Duration::from_secs(1);

/// How long a batch may take, with all that is done again for it.
const BATCH: Duration = Duration::from_secs(5);

/// How long a consumer may be outside of its group: a few seconds are normal when another one comes or dies.
const OUTSIDE: Duration = Duration::from_secs(15);

/// How long until a consumer that does not come back into its group is replaced.
const GIVEN_UP: Duration = Duration::from_secs(30);

/// Watches the work.
pub(super) struct Liveness {
    check: Check,
    /// When the batch began that is not done yet.
    busy_since: Option<Instant>,
    /// Why it had to begin again.
    failure: Option<String>,
    outside_since: Option<Instant>,
}

impl Liveness {
    /// Begins as ready: what is waited for at first has separate checks.
    pub(super) fn new(check: Check) -> Self {
        check.ready();
        Self { check, busy_since: None, failure: None, outside_since: None }
    }

    /// Polls; none when the consumer has been outside of its group for so long that it needs to be replaced.
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
                () = sleep(LOOK) => {}
            }
            // Outside of the group nothing is read, so giving the poll up loses nothing.
            if !self.idles(consumer.is_member()) {
                return None;
            }
        }
    }

    /// Notes that there was nothing to read for a while; returns whether the consumer may go on.
    fn idles(&mut self, is_member: bool) -> bool {
        if is_member {
            self.outside_since = None;
            self.done();
            return true;
        }
        let outside = self.outside_since.get_or_insert_with(Instant::now).elapsed();
        if outside > OUTSIDE {
            self.check.unready(format!("outside of its consumer group for {} s", outside.as_secs()));
        }
        let may_go_on = outside <= GIVEN_UP;
        if !may_go_on {
            self.outside_since = None;
        }
        may_go_on
    }

    /// Waits for a part of the work on a batch, or of getting ready for one.
    pub(super) async fn during<T, E: Display>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.busy_since.get_or_insert_with(Instant::now);
        let mut work = pin!(work);
        let outcome = loop {
            tokio::select! {
                outcome = &mut work => break outcome,
                () = sleep(LOOK) => self.is_busy(),
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
        if busy > BATCH {
            let why = self.failure.as_deref().unwrap_or("no answer");
            self.check.unready(format!("no batch done for {} s: {why}", busy.as_secs()));
        }
    }

    /// Notes that a batch is done.
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
    async fn a_batch_that_takes_too_long_and_one_that_fails_again_and_again_is_not_ready_until_it_is_done() {
        let (health, mut liveness) = watched();
        assert!(health.report().ready);
        let slow = async {
            sleep(BATCH * 2).await;
            assert!(!health.report().ready, "it does not wait for the end to say so");
            Err::<(), _>("no answer")
        };
        assert_eq!(liveness.during(slow).await, Err("no answer"));
        assert_eq!(liveness.during(async { Ok::<_, &str>(()) }).await, Ok(()));
        assert!(!health.report().ready, "getting ready again is not the batch");
        liveness.done();
        assert!(health.report().ready);
        for _ in 0..2 {
            assert!(health.report().ready, "one failure is nothing to tell of");
            assert_eq!(liveness.during(async { Err::<(), _>("fenced") }).await, Err("fenced"));
            sleep(BATCH / 2 + LOOK).await;
        }
        assert_eq!(liveness.during(async { Err::<(), _>("fenced") }).await, Err("fenced"));
        assert!(!health.report().ready);
        assert!(liveness.idles(true), "nothing is left to do");
        assert!(health.report().ready);
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_outside_of_its_group_is_told_of_and_replaced_in_the_end() {
        let (health, mut liveness) = watched();
        assert!(liveness.idles(false));
        sleep(OUTSIDE / 2).await;
        assert!(liveness.idles(false) && health.report().ready);
        sleep(OUTSIDE).await;
        assert!(liveness.idles(false) && !health.report().ready);
        sleep(GIVEN_UP).await;
        assert!(!liveness.idles(false));
        assert!(liveness.idles(false) && !health.report().ready, "the next one has its time too");
        assert!(liveness.idles(true) && health.report().ready);
    }
}
