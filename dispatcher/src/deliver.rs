//! Deliveries out of Postgres to their receivers.
//!
//! One loop shares slots out, claims as many deliveries as got one and starts their attempts; another writes what
//! the attempts came to, in batches. A slot is free again when its outcome is written, so what is held in memory
//! stays bounded whatever Postgres or the receivers do.

use std::{
    collections::{HashMap, HashSet},
    panic::resume_unwind,
    sync::Arc,
    time::Duration,
};

use schemas::id::EndpointId;
use service::Shutdown;
use sqlx::PgPool;
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout_at},
};
use uuid::Uuid;

use crate::{
    attempt::{Claimed, Outcome, Sender, Target},
    config::Tuning,
    outcomes::{self, Finish},
    slots::{Grant, Slots},
    store,
};

/// How often Postgres is asked what is due; new deliveries do not wait for it.
const POLL: Duration = Duration::from_secs(1);

/// How long to leave Postgres alone after an error.
const PAUSE: Duration = Duration::from_millis(500);

/// How long before the drain deadline calls in flight are given up, so that there is time for what follows.
const GIVE_UP: Duration = Duration::from_secs(3);

/// How long before the drain deadline outcomes that are not written are left to be repeated.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// How long before the drain deadline leases that are not released are left to run out.
const LAST_RELEASE: Duration = Duration::from_secs(1);

/// Delivers until a stop is requested, then waits for the attempts in flight.
///
/// `stored` names endpoints that have new deliveries.
pub(crate) async fn deliver(
    sender: Sender,
    tuning: Tuning,
    pool: PgPool,
    mut stored: mpsc::Receiver<HashSet<EndpointId>>,
    shutdown: Shutdown,
) {
    let _hold = shutdown.hold("webhook deliveries");
    let (finish, finished) = mpsc::channel(tuning.per_process);
    let (written, mut freed) = mpsc::channel(tuning.per_process);
    let mut writer = JoinSet::new();
    writer.spawn(outcomes::write(pool.clone(), finished, written));
    let mut deliver = Deliver {
        slots: Slots::new(tuning.per_endpoint, tuning.per_process),
        lease: tuning.attempt_deadline + tuning.lease_margin,
        sender: Arc::new(sender),
        finish: Finish::new(finish, tuning.retry_base),
        pool,
        attempts: JoinSet::new(),
        leases: HashMap::new(),
    };
    let mut poll = interval(POLL);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !shutdown.requested() {
        tokio::select! {
            () = shutdown.wait() => break,
            Some(endpoints) = stored.recv() => deliver.wake(endpoints),
            Some(settled) = freed.recv() => deliver.free(settled),
            _ = poll.tick() => deliver.look().await,
            // It ends after this loop unless it panicked, and then nobody would free a slot any more.
            Some(Err(error)) = writer.join_next() => panic_with(error),
        }
        // Whatever else is there at once shares the next claim.
        while let Ok(endpoints) = stored.try_recv() {
            deliver.wake(endpoints);
        }
        while let Ok(settled) = freed.try_recv() {
            deliver.free(settled);
        }
        deliver.claim().await;
    }
    // Intake must not wait for a loop that listens no more.
    drop(stored);
    deliver.drain(freed, writer, &shutdown).await;
}

/// A delivery whose outcome is written, and its endpoint.
pub(crate) type Written = (Uuid, EndpointId);

struct Deliver {
    slots: Slots,
    lease: Duration,
    sender: Arc<Sender>,
    finish: Finish,
    pool: PgPool,
    /// Attempts in flight; they end with this.
    attempts: JoinSet<()>,
    /// Leases held, by delivery.
    leases: HashMap<Uuid, Uuid>,
}

impl Deliver {
    fn wake(&mut self, endpoints: impl IntoIterator<Item = EndpointId>) {
        endpoints.into_iter().for_each(|endpoint| self.slots.wake(endpoint));
    }

    fn free(&mut self, written: Vec<Written>) {
        for (delivery, endpoint) in written {
            self.leases.remove(&delivery);
            self.slots.release(endpoint, 1);
        }
        while let Some(ended) = self.attempts.try_join_next() {
            ended.unwrap_or_else(panic_with);
        }
    }

    /// Asks which endpoints have deliveries due: retries, and those whose lease ran out.
    async fn look(&mut self) {
        match store::backlog(&self.pool).await {
            Ok(backlog) => {
                metrics::gauge!("hopline_webhook_oldest_due_seconds").set(backlog.oldest_due.as_secs_f64());
                metrics::gauge!("hopline_webhook_endpoints_due").set(backlog.endpoints.len() as f64);
                self.wake(backlog.endpoints);
            }
            Err(error) => tracing::warn!("cannot look for deliveries that are due: {error}"),
        }
    }

    /// Claims and starts as many deliveries as there are slots for.
    async fn claim(&mut self) {
        loop {
            let grants = self.slots.grant();
            if grants.is_empty() {
                break;
            }
            if let Err(error) = self.start(&grants).await {
                tracing::warn!("cannot claim deliveries: {error}");
                // They keep their turn; a delivery that was leased all the same comes back when its lease runs out.
                grants.into_iter().for_each(|grant| {
                    self.slots.release(grant.endpoint_id, grant.slots);
                    self.slots.wake(grant.endpoint_id);
                });
                sleep(PAUSE).await;
                break;
            }
        }
        metrics::gauge!("hopline_webhook_in_flight").set(self.slots.in_flight() as f64);
    }

    async fn start(&mut self, grants: &[Grant]) -> sqlx::Result<()> {
        let claimed = store::claim(&self.pool, grants, self.lease, Uuid::now_v7()).await?;
        let endpoints: HashSet<EndpointId> = claimed.iter().map(|delivery| delivery.endpoint_id).collect();
        let endpoints: Vec<EndpointId> = endpoints.into_iter().collect();
        // Read after the claim and just before the send: whoever is disabled or deleted by now gets nothing.
        let targets = if endpoints.is_empty() {
            HashMap::new()
        } else {
            store::targets(&self.pool, &endpoints).await?
        };
        let targets: HashMap<EndpointId, Arc<Target>> =
            targets.into_iter().map(|(endpoint, target)| (endpoint, Arc::new(target))).collect();
        let mut counts: HashMap<EndpointId, usize> = HashMap::new();
        for delivery in claimed {
            *counts.entry(delivery.endpoint_id).or_default() += 1;
            self.leases.insert(delivery.delivery_id, delivery.lease_token);
            let target = targets.get(&delivery.endpoint_id).cloned();
            self.attempts.spawn(attempt(Arc::clone(&self.sender), self.finish.clone(), delivery, target));
        }
        for grant in grants {
            self.slots.claimed(*grant, counts.get(&grant.endpoint_id).copied().unwrap_or(0));
        }
        Ok(())
    }

    /// Waits for the attempts in flight, as long as there is time, and gives back the leases of the others.
    async fn drain(
        mut self,
        mut freed: mpsc::Receiver<Vec<Written>>,
        mut writer: JoinSet<()>,
        shutdown: &Shutdown,
    ) {
        let deadline = shutdown.deadline().unwrap_or_else(Instant::now);
        let before = |time| deadline.checked_sub(time).unwrap_or(deadline);
        while !self.leases.is_empty()
            && let Ok(Some(written)) = timeout_at(before(GIVE_UP), freed.recv()).await
        {
            self.free(written);
        }
        self.attempts.shutdown().await;
        // Without a sender the writer ends after the last outcome.
        drop(self.finish);
        while let Ok(Some(written)) = timeout_at(before(LAST_WRITE), freed.recv()).await {
            for (delivery, _) in written {
                self.leases.remove(&delivery);
            }
        }
        writer.shutdown().await;
        if self.leases.is_empty() {
            return;
        }
        let left = self.leases.len();
        tracing::info!(deliveries = left, "gave {left} deliveries back that were not answered in time");
        let release = store::release(&self.pool, self.leases.into_iter());
        if !matches!(timeout_at(before(LAST_RELEASE), release).await, Ok(Ok(()))) {
            tracing::warn!("could not release their leases, which run out by themselves");
        }
    }
}

/// Passes a panic on: a slot that nobody frees would be lost until the process is started again.
fn panic_with(error: JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        resume_unwind(panic);
    }
}

async fn attempt(sender: Arc<Sender>, finish: Finish, delivery: Claimed, target: Option<Arc<Target>>) {
    let begun = Instant::now();
    let Some(target) = target else {
        return finish.send(delivery, None, Outcome::Withdrawn).await;
    };
    let outcome = sender.attempt(&delivery, &target).await;
    metrics::histogram!("hopline_webhook_attempt_seconds").record(begun.elapsed());
    finish.send(delivery, Some(target.epoch), outcome).await;
}
