//! Schedules the attempts of deliveries.
//!
//! One loop grants permits in turn, claims that many deliveries and starts their attempts; another writes the outcomes
//! in batches. A permit is freed when its outcome is written, so memory stays bounded whatever Postgres or the
//! receivers do.

use std::collections::{HashMap, HashSet};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use metrics::{gauge, histogram};
use schemas::id::{AccountId, EndpointId};
use service::{LogLimit, Shutdown};
use sqlx::PgPool;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout_at};
use uuid::Uuid;

use super::gates::{Gate, Gates};
use super::outcomes::{Finish, Written};
use super::recheck::{Recheck, Unanswered};
use super::send::Sender;
use super::slots::{Claim, Limits, Permit, Slots};
use super::timers::Timers;
use super::{outcomes, recheck};
use crate::attempt::{Claimed, Outcome, Target};
use crate::config::Tuning;
use crate::leases::handover::{Message, Offer};
use crate::store;
use crate::store::{Grant, Lease, Waiting};

/// How often Postgres is polled for due deliveries. This finds redeliveries, test events, and deliveries that another
/// dispatcher delayed or released.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// After a slow poll, the pause is this many times its duration.
const PAUSE_FACTOR: u32 = 10;

/// Minimum time between two claims, so that deliveries that get a permit meanwhile share one. For Postgres, claiming a
/// few deliveries costs nearly as much as claiming many.
const CLAIM_INTERVAL: Duration = Duration::from_millis(5);

/// A delivery that waited longer than this is rechecked just before it is sent.
const RECHECK_AFTER: Duration = Duration::from_millis(250);

/// How often to check for slow attempts.
const SLOW_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// An attempt that takes longer than this is slow.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// The pause after an error of Postgres.
const PAUSE: Duration = Duration::from_millis(500);

/// How long before the drain deadline attempts in flight are aborted, so that time remains for the next steps.
const ABORT_BEFORE: Duration = Duration::from_secs(3);

/// How long before the drain deadline writing outcomes stops; the rest are repeated.
const STOP_WRITING_BEFORE: Duration = Duration::from_secs(2);

/// How long before the drain deadline releasing leases stops; the rest expire.
const STOP_RELEASING_BEFORE: Duration = Duration::from_secs(1);

/// Delivers until a stop is requested, then waits for the attempts in flight.
///
/// `number` is this dispatcher's number in leases; nothing is sent before it has one. It is received until the last
/// outcome is written.
pub(crate) async fn deliver(
    sender: Sender,
    tuning: Tuning,
    pool: PgPool,
    mut incoming: mpsc::Receiver<Message>,
    number: watch::Receiver<Option<i32>>,
    shutdown: Shutdown,
) {
    let _guard = shutdown.track_work("webhook deliveries");
    let (finish, finished) = mpsc::channel(tuning.per_process);
    let (written, mut freed) = mpsc::channel(tuning.per_process);
    let (polled, mut backlogs) = mpsc::channel(1);
    let mut others = JoinSet::new();
    others.spawn(poll(pool.clone(), polled));
    let (recheck, questions) = Recheck::new();
    others.spawn(recheck::answer(pool.clone(), questions));
    let mut writer = JoinSet::new();
    writer.spawn(outcomes::write(pool.clone(), finished, written));
    let mut deliver = Deliver {
        slots: Slots::new(Limits {
            per_endpoint: tuning.per_endpoint,
            per_account: tuning.per_account,
            per_process: tuning.per_process,
            bytes: tuning.body_bytes,
        }),
        lasts: tuning.attempt_deadline + tuning.lease_margin,
        max_wait: tuning.lease_margin / 2,
        gates: Gates::new(tuning.per_endpoint, tuning.per_account, tuning.per_process),
        sender: Arc::new(sender),
        finish: Finish::new(finish, tuning.retry_base),
        recheck,
        pool,
        number,
        attempts: JoinSet::new(),
        held: HashMap::new(),
        timers: Timers::default(),
    };
    let mut report_slow = interval(SLOW_CHECK_INTERVAL);
    report_slow.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut has_more, mut next_claim) = (false, Instant::now());
    while !shutdown.requested() {
        tokio::select! {
            () = shutdown.wait() => break,
            // One claim at a time, so that a long backlog delays nothing else.
            () = sleep_until(next_claim), if has_more => {}
            Some(message) = incoming.recv() => deliver.receive(message).await,
            Some(written) = freed.recv() => deliver.free(written),
            Some(backlog) = backlogs.recv() => deliver.wake(&backlog),
            () = deliver.timers.due() => {}
            _ = report_slow.tick() => deliver.report_slow(),
            // These tasks end after this loop unless they panic. Then no permit would ever be freed.
            Some(Err(error)) = writer.join_next() => panic_with(error),
            Some(Err(error)) = others.join_next() => panic_with(error),
        }
        // Permits that are free already share the next claim.
        while let Ok(written) = freed.try_recv() {
            deliver.free(written);
        }
        while let Some((endpoint_id, account_id)) = deliver.timers.pop() {
            deliver.slots.wake(endpoint_id, account_id, true);
        }
        if Instant::now() < next_claim {
            has_more = true;
        } else {
            has_more = deliver.claim().await;
            next_claim = Instant::now() + CLAIM_INTERVAL;
        }
    }
    // `enqueue` must not wait for a loop that has ended.
    drop(incoming);
    deliver.drain(freed, writer, &shutdown).await;
}

/// Polls for endpoints with due deliveries, for only a small part of the time.
async fn poll(pool: PgPool, polled: mpsc::Sender<Vec<Waiting>>) {
    let log_limit = LogLimit::default();
    loop {
        let begun = Instant::now();
        match store::backlog(&pool).await {
            Ok(backlog) => {
                let oldest = |age: fn(&Waiting) -> Option<Duration>| {
                    backlog.iter().filter_map(age).max().unwrap_or_default().as_secs_f64()
                };
                let gauge = |attempt: &'static str| gauge!("hopline_webhook_oldest_due_seconds", "attempt" => attempt);
                gauge("first").set(oldest(|one| one.first));
                gauge("retry").set(oldest(|one| one.retry));
                gauge!("hopline_webhook_endpoints_due").set(backlog.len() as f64);
                if polled.send(backlog).await.is_err() {
                    return;
                }
            }
            Err(error) if log_limit.is_due() => tracing::warn!("cannot poll for due deliveries: {error}"),
            Err(_) => {}
        }
        sleep(POLL_INTERVAL.max(begun.elapsed() * PAUSE_FACTOR)).await;
    }
}

/// A delivery that this process has leased.
struct Held {
    lease_token: Uuid,
    account_id: AccountId,
    permit: Permit,
    since: Instant,
}

struct Deliver {
    slots: Slots,
    /// The duration of a lease.
    lasts: Duration,
    /// How long after the start of its lease an attempt may begin, so that it ends within the lease.
    max_wait: Duration,
    gates: Gates,
    sender: Arc<Sender>,
    finish: Finish,
    recheck: Recheck,
    pool: PgPool,
    number: watch::Receiver<Option<i32>>,
    /// Attempts in flight, aborted when this is dropped.
    attempts: JoinSet<()>,
    held: HashMap<Uuid, Held>,
    timers: Timers,
}

impl Deliver {
    fn wake(&mut self, backlog: &[Waiting]) {
        for one in backlog {
            self.slots.wake(one.endpoint_id, one.account_id, one.retry.is_some());
        }
    }

    fn lease(&self) -> Option<Lease> {
        let by = (*self.number.borrow())?;
        Some(Lease { by, token: Uuid::now_v7(), lasts: self.lasts, since: Instant::now() })
    }

    /// Offers permits for deliveries to be stored, or starts stored ones.
    async fn receive(&mut self, message: Message) {
        match message {
            Message::Ask { wanted, reply } => {
                let lease = self.lease();
                let mut grants = Vec::new();
                if lease.is_some() {
                    grants.extend(wanted.into_iter().filter_map(|((endpoint_id, account_id), count)| {
                        self.slots.offer(endpoint_id, account_id, count)
                    }));
                }
                if let Err(Offer { grants, .. }) = reply.send(Offer { grants, lease }) {
                    self.unused(&grants);
                }
            }
            Message::Stored { grants, claimed, left } => {
                if let Err(error) = self.start(&grants, claimed).await {
                    tracing::warn!("cannot read targets: {error}");
                }
                for (endpoint_id, account_id) in left {
                    self.slots.wake(endpoint_id, account_id, false);
                }
            }
        }
    }

    fn unused(&mut self, grants: &[Grant]) {
        for grant in grants {
            self.slots.unused(*grant);
        }
    }

    fn free(&mut self, written: Vec<Written>) {
        let now = Instant::now();
        for one in written {
            let Some(held) = self.held.remove(&one.delivery_id) else { continue };
            self.slots.ended(held.permit, one.standing, one.took);
            if let Some(wait) = one.due_in {
                self.timers.add(now + wait, held.permit.endpoint_id, held.account_id);
            }
        }
        while let Some(ended) = self.attempts.try_join_next() {
            ended.unwrap_or_else(panic_with);
        }
    }

    /// Reports slow attempts to the slots.
    fn report_slow(&mut self) {
        let now = Instant::now();
        for held in self.held.values().filter(|held| now.duration_since(held.since) > SLOW_AFTER) {
            self.slots.slow(held.permit.endpoint_id, held.since);
        }
        gauge!("hopline_webhook_in_flight").set(self.slots.in_flight() as f64);
        gauge!("hopline_webhook_in_flight_bytes").set(self.slots.bytes() as f64);
    }

    /// Claims and starts deliveries of the endpoints whose turn it is. Returns whether there may be more.
    async fn claim(&mut self) -> bool {
        let Some(lease) = self.lease() else { return false };
        let grants = self.slots.grant();
        if grants.is_empty() {
            return false;
        }
        let outcome = match store::claim(&self.pool, &grants, lease).await {
            Ok(claimed) => self.start(&grants, claimed).await,
            Err(error) => {
                self.unused(&grants);
                Err(error)
            }
        };
        if let Err(error) = outcome {
            tracing::warn!("cannot claim deliveries: {error}");
            // A delivery that was leased although the answer was lost becomes due when its lease expires.
            sleep(PAUSE).await;
        }
        true
    }

    /// Starts the attempts of deliveries that were claimed for these grants.
    async fn start(&mut self, grants: &[Grant], claimed: Vec<Claimed>) -> sqlx::Result<()> {
        let endpoints: HashSet<EndpointId> = claimed.iter().map(|delivery| delivery.endpoint_id).collect();
        let endpoints: Vec<EndpointId> = endpoints.into_iter().collect();
        // Read after the claim and just before sending, so that endpoints that were disabled or deleted since get
        // nothing.
        let targets = if endpoints.is_empty() {
            Ok(HashMap::new())
        } else {
            store::targets(&self.pool, &endpoints).await
        };
        let targets = match targets {
            Ok(targets) => targets,
            Err(error) => {
                self.unused(grants);
                return Err(error);
            }
        };
        let targets: HashMap<EndpointId, Arc<Target>> =
            targets.into_iter().map(|(endpoint, target)| (endpoint, Arc::new(target))).collect();
        let since = Instant::now();
        let mut claims: HashMap<EndpointId, Claim> = HashMap::new();
        for delivery in claimed {
            let is_first = delivery.attempt == 1;
            let permit = Permit { endpoint_id: delivery.endpoint_id, is_first, bytes: delivery.body.len() };
            let claim = claims.entry(delivery.endpoint_id).or_default();
            claim.firsts += usize::from(is_first);
            claim.retries += usize::from(!is_first);
            claim.bytes += permit.bytes;
            let held =
                Held { lease_token: delivery.lease_token, account_id: delivery.account_id, permit, since };
            self.held.insert(delivery.delivery_id, held);
            // Without a target when the epoch differs, so that deliveries from before the endpoint was disabled are not
            // sent.
            let target = targets.get(&delivery.endpoint_id).filter(|target| target.epoch == delivery.epoch);
            let attempt = Attempt {
                gate: self.gates.to(delivery.endpoint_id, delivery.account_id),
                max_wait: self.max_wait,
                sender: Arc::clone(&self.sender),
                target: target.cloned(),
                recheck: self.recheck.clone(),
            };
            self.attempts.spawn(attempt.make(delivery, self.finish.clone()));
        }
        for grant in grants {
            self.slots.claimed(*grant, claims.get(&grant.endpoint_id).copied().unwrap_or_default());
        }
        Ok(())
    }

    /// Waits for the attempts in flight while there is time, and releases the leases of the others.
    async fn drain(
        mut self,
        mut freed: mpsc::Receiver<Vec<Written>>,
        mut writer: JoinSet<()>,
        shutdown: &Shutdown,
    ) {
        let deadline = shutdown.deadline().unwrap_or_else(Instant::now);
        let before = |time| deadline.checked_sub(time).unwrap_or(deadline);
        while !self.held.is_empty()
            && let Ok(Some(written)) = timeout_at(before(ABORT_BEFORE), freed.recv()).await
        {
            self.free(written);
        }
        self.attempts.shutdown().await;
        // Without senders, the writer ends after the last outcome.
        drop(self.finish);
        while let Ok(Some(written)) = timeout_at(before(STOP_WRITING_BEFORE), freed.recv()).await {
            for one in written {
                self.held.remove(&one.delivery_id);
            }
        }
        writer.shutdown().await;
        if self.held.is_empty() {
            return;
        }
        let left = self.held.len();
        tracing::info!(deliveries = left, "released {left} deliveries that were not answered in time");
        let leases = self.held.into_iter().map(|(delivery, held)| (delivery, held.lease_token));
        let release = store::release(&self.pool, leases);
        if !matches!(timeout_at(before(STOP_RELEASING_BEFORE), release).await, Ok(Ok(()))) {
            tracing::warn!("cannot release their leases, which expire by themselves");
        }
    }
}

/// Resumes a panic, because its permit would be lost until the process restarts.
fn panic_with(error: JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        resume_unwind(panic);
    }
}

/// An attempt to make.
struct Attempt {
    gate: Gate,
    max_wait: Duration,
    sender: Arc<Sender>,
    /// `None` when the delivery must not be sent.
    target: Option<Arc<Target>>,
    recheck: Recheck,
}

impl Attempt {
    async fn make(self, delivery: Claimed, finish: Finish) {
        let Some(mut target) = self.target else {
            return finish.send(delivery, Outcome::Withdrawn, Duration::ZERO).await;
        };
        // Counted from the start of the lease and not from now, because the answer of Postgres may have been slow.
        let latest = delivery.leased_at + self.max_wait;
        let Ok(Some(pass)) = timeout_at(latest, self.gate.pass()).await else {
            return finish.send(delivery, Outcome::Unsent, Duration::ZERO).await;
        };
        if delivery.leased_at.elapsed() > RECHECK_AFTER {
            match timeout_at(latest, self.recheck.target(&delivery)).await {
                Ok(Ok(Some(now))) => target = Arc::new(now),
                Ok(Ok(None)) => return finish.send(delivery, Outcome::Withdrawn, Duration::ZERO).await,
                Ok(Err(Unanswered)) | Err(_) => {
                    return finish.send(delivery, Outcome::Unsent, Duration::ZERO).await;
                }
            }
        }
        let begun = Instant::now();
        let outcome = self.sender.attempt(&delivery, &target).await;
        let took = begun.elapsed();
        histogram!("hopline_webhook_attempt_seconds").record(took);
        // The next request need not wait until this outcome is written.
        drop(pass);
        finish.send(delivery, outcome, took).await;
    }
}
