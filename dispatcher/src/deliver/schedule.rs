//! Deliveries to their receivers.
//!
//! One loop gives permits in turn, claims as many deliveries as got one and starts their attempts; another writes
//! what the attempts came to, in batches. A permit is free again when its outcome is written, so what is held in
//! memory stays bounded whatever Postgres or the receivers do.

use std::{
    collections::{HashMap, HashSet},
    panic::resume_unwind,
    sync::Arc,
    time::Duration,
};

use schemas::id::{EndpointId, WorkspaceId};
use service::Shutdown;
use sqlx::PgPool;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout_at},
};
use uuid::Uuid;

use super::{
    gates::{Gate, Gates},
    outcomes::{self, Finish, Written},
    recheck::{self, Recheck, Unanswered},
    send::Sender,
    slots::{Bounds, Claim, Permit, Slots},
    timers::Timers,
};
use crate::{
    attempt::{Claimed, Outcome, Target},
    config::Tuning,
    leases::handover::{Message, Offer},
    store::{self, Grant, Lease, Waiting},
};

/// How often Postgres is asked what is due. It finds what nobody else tells: redeliveries, test events, and what
/// another dispatcher has put off or left behind.
const POLL: Duration = Duration::from_secs(1);

/// A look that takes long is followed by a pause of so many times as long.
const POLL_SHARE: u32 = 10;

/// How soon one claim may follow another: what gets a permit meanwhile shares it, and a claim of a few deliveries costs
/// Postgres nearly as much as one of many.
const PACE: Duration = Duration::from_millis(5);

/// After this time where a delivery goes, and whether it is still this process's to send, is read again just before
/// it is sent.
const FRESH: Duration = Duration::from_millis(250);

/// How often to look which attempts take long.
const SWEEP: Duration = Duration::from_millis(250);

/// An attempt takes long after this time.
const LONG: Duration = Duration::from_secs(1);

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
/// `number` is the one under which this dispatcher leases; it sends nothing before it has one.
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
    let (looked, mut backlogs) = mpsc::channel(1);
    let mut others = JoinSet::new();
    others.spawn(look(pool.clone(), looked));
    let (recheck, questions) = Recheck::new();
    others.spawn(recheck::answer(pool.clone(), questions));
    let mut writer = JoinSet::new();
    writer.spawn(outcomes::write(pool.clone(), finished, written));
    let mut deliver = Deliver {
        slots: Slots::new(Bounds {
            per_endpoint: tuning.per_endpoint,
            per_workspace: tuning.per_workspace,
            per_process: tuning.per_process,
            bytes: tuning.body_bytes,
        }),
        lasts: tuning.attempt_deadline + tuning.lease_margin,
        patience: tuning.lease_margin / 2,
        gates: Gates::new(tuning.per_endpoint, tuning.per_workspace, tuning.per_process),
        sender: Arc::new(sender),
        finish: Finish::new(finish, tuning.retry_base),
        recheck,
        pool,
        number,
        attempts: JoinSet::new(),
        held: HashMap::new(),
        timers: Timers::default(),
    };
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut has_more, mut next_claim) = (false, Instant::now());
    while !shutdown.requested() {
        tokio::select! {
            () = shutdown.wait() => break,
            // One claim at a time, so that a long backlog keeps nothing else waiting.
            () = sleep_until(next_claim), if has_more => {}
            Some(message) = incoming.recv() => deliver.take_in(message).await,
            Some(written) = freed.recv() => deliver.free(written),
            Some(backlog) = backlogs.recv() => deliver.wake(&backlog),
            () = deliver.timers.due() => {}
            _ = sweep.tick() => deliver.sweep(),
            // They end after this loop unless they panicked, and then nobody would free a permit any more.
            Some(Err(error)) = writer.join_next() => panic_with(error),
            Some(Err(error)) = others.join_next() => panic_with(error),
        }
        // Whatever else is there at once shares the next claim.
        while let Ok(written) = freed.try_recv() {
            deliver.free(written);
        }
        while let Some((endpoint_id, workspace_id)) = deliver.timers.pop() {
            deliver.slots.wake(endpoint_id, workspace_id, true);
        }
        if Instant::now() < next_claim {
            has_more = true;
        } else {
            has_more = deliver.claim().await;
            next_claim = Instant::now() + PACE;
        }
    }
    // `enqueue` must not wait for a loop that listens no more.
    drop(incoming);
    deliver.drain(freed, writer, &shutdown).await;
}

/// Asks again and again which endpoints have deliveries due, and leaves Postgres most of its time for other things.
async fn look(pool: PgPool, looked: mpsc::Sender<Vec<Waiting>>) {
    loop {
        let begun = Instant::now();
        match store::backlog(&pool).await {
            Ok(backlog) => {
                let oldest = |age: fn(&Waiting) -> Option<Duration>| {
                    backlog.iter().filter_map(age).max().unwrap_or_default().as_secs_f64()
                };
                let gauge = |attempt: &'static str| metrics::gauge!("hopline_webhook_oldest_due_seconds", "attempt" => attempt);
                gauge("first").set(oldest(|one| one.first));
                gauge("retry").set(oldest(|one| one.retry));
                metrics::gauge!("hopline_webhook_endpoints_due").set(backlog.len() as f64);
                if looked.send(backlog).await.is_err() {
                    return;
                }
            }
            Err(error) => tracing::warn!("cannot look for deliveries that are due: {error}"),
        }
        sleep(POLL.max(begun.elapsed() * POLL_SHARE)).await;
    }
}

/// A delivery that this process has leased.
struct Held {
    lease_token: Uuid,
    workspace_id: WorkspaceId,
    permit: Permit,
    since: Instant,
}

struct Deliver {
    slots: Slots,
    /// How long a lease lasts.
    lasts: Duration,
    /// How long after the beginning of its lease an attempt may begin, so that it ends within the lease.
    patience: Duration,
    gates: Gates,
    sender: Arc<Sender>,
    finish: Finish,
    recheck: Recheck,
    pool: PgPool,
    number: watch::Receiver<Option<i32>>,
    /// Attempts in flight; they end with this.
    attempts: JoinSet<()>,
    held: HashMap<Uuid, Held>,
    timers: Timers,
}

impl Deliver {
    fn wake(&mut self, backlog: &[Waiting]) {
        for one in backlog {
            self.slots.wake(one.endpoint_id, one.workspace_id, one.retry.is_some());
        }
    }

    fn lease(&self) -> Option<Lease> {
        let by = (*self.number.borrow())?;
        Some(Lease { by, token: Uuid::now_v7(), lasts: self.lasts, since: Instant::now() })
    }

    /// Offers permits for what is about to be stored, or starts what was.
    async fn take_in(&mut self, message: Message) {
        match message {
            Message::Ask { wanted, reply } => {
                let lease = self.lease();
                let mut grants = Vec::new();
                if lease.is_some() {
                    grants.extend(wanted.into_iter().filter_map(|((endpoint_id, workspace_id), count)| {
                        self.slots.offer(endpoint_id, workspace_id, count)
                    }));
                }
                if let Err(Offer { grants, .. }) = reply.send(Offer { grants, lease }) {
                    self.unused(&grants);
                }
            }
            Message::Stored { grants, claimed, left } => {
                if let Err(error) = self.start(&grants, claimed).await {
                    tracing::warn!("cannot read where deliveries go: {error}");
                }
                for (endpoint_id, workspace_id) in left {
                    self.slots.wake(endpoint_id, workspace_id, false);
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
                self.timers.add(now + wait, held.permit.endpoint_id, held.workspace_id);
            }
        }
        while let Some(ended) = self.attempts.try_join_next() {
            ended.unwrap_or_else(panic_with);
        }
    }

    /// Tells the permits' keeper of attempts that take long.
    fn sweep(&mut self) {
        let now = Instant::now();
        for held in self.held.values().filter(|held| now.duration_since(held.since) > LONG) {
            self.slots.takes_long(held.permit.endpoint_id, held.since);
        }
        metrics::gauge!("hopline_webhook_in_flight").set(self.slots.in_flight() as f64);
        metrics::gauge!("hopline_webhook_in_flight_bytes").set(self.slots.bytes() as f64);
    }

    /// Claims and starts deliveries of those whose turn it is. Returns whether there may be more.
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
            // A delivery that was leased all the same comes back when its lease runs out.
            sleep(PAUSE).await;
        }
        true
    }

    /// Starts the attempts of deliveries that were claimed for these grants.
    async fn start(&mut self, grants: &[Grant], claimed: Vec<Claimed>) -> sqlx::Result<()> {
        let endpoints: HashSet<EndpointId> = claimed.iter().map(|delivery| delivery.endpoint_id).collect();
        let endpoints: Vec<EndpointId> = endpoints.into_iter().collect();
        // Read after the claim and just before the send: whoever is disabled or deleted by now gets nothing.
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
            let held = Held {
                lease_token: delivery.lease_token,
                workspace_id: delivery.workspace_id,
                permit,
                since,
            };
            self.held.insert(delivery.delivery_id, held);
            // Of another epoch, or of nobody: what was on its way to an endpoint that was disabled stays away from it.
            let target = targets.get(&delivery.endpoint_id).filter(|target| target.epoch == delivery.epoch);
            let attempt = Attempt {
                gate: self.gates.to(delivery.endpoint_id, delivery.workspace_id),
                patience: self.patience,
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

    /// Waits for the attempts in flight, as long as there is time, and gives back the leases of the others.
    async fn drain(
        mut self,
        mut freed: mpsc::Receiver<Vec<Written>>,
        mut writer: JoinSet<()>,
        shutdown: &Shutdown,
    ) {
        let deadline = shutdown.deadline().unwrap_or_else(Instant::now);
        let before = |time| deadline.checked_sub(time).unwrap_or(deadline);
        while !self.held.is_empty()
            && let Ok(Some(written)) = timeout_at(before(GIVE_UP), freed.recv()).await
        {
            self.free(written);
        }
        self.attempts.shutdown().await;
        // Without a sender the writer ends after the last outcome.
        drop(self.finish);
        while let Ok(Some(written)) = timeout_at(before(LAST_WRITE), freed.recv()).await {
            for one in written {
                self.held.remove(&one.delivery_id);
            }
        }
        writer.shutdown().await;
        if self.held.is_empty() {
            return;
        }
        let left = self.held.len();
        tracing::info!(deliveries = left, "gave {left} deliveries back that were not answered in time");
        let leases = self.held.into_iter().map(|(delivery, held)| (delivery, held.lease_token));
        let release = store::release(&self.pool, leases);
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

/// One attempt that is about to be made.
struct Attempt {
    gate: Gate,
    patience: Duration,
    sender: Arc<Sender>,
    /// None when nobody is there to get it.
    target: Option<Arc<Target>>,
    recheck: Recheck,
}

impl Attempt {
    async fn make(self, delivery: Claimed, finish: Finish) {
        let Some(mut target) = self.target else {
            return finish.send(delivery, Outcome::Withdrawn, Duration::ZERO).await;
        };
        // Counted from the lease and not from here: Postgres may have been slow to tell of it.
        let latest = delivery.leased_at + self.patience;
        let Ok(Some(pass)) = timeout_at(latest, self.gate.pass()).await else {
            return finish.send(delivery, Outcome::Unsent, Duration::ZERO).await;
        };
        if delivery.leased_at.elapsed() > FRESH {
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
        metrics::histogram!("hopline_webhook_attempt_seconds").record(took);
        // Whoever waits for this turn need not wait until it is written what came of this one.
        drop(pass);
        finish.send(delivery, outcome, took).await;
    }
}
