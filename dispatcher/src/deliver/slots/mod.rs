//! Permits to send, limited per endpoint, account and process, and granted in turn.
//!
//! Only as many deliveries are claimed as can be sent soon, so the backlog of a dead endpoint waits in Postgres.
//! `gates` limits the requests in flight. Of the permits of an account and of the process, a quarter is reserved for
//! retries and half for endpoints with a recent success; failing endpoints get at most a quarter. So an endpoint that
//! answers finds a permit, however many others never answer.

mod pool;
mod standing;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use pool::Pool;
use schemas::id::{AccountId, EndpointId};
use standing::AHEAD;
pub(crate) use standing::Standing;
use tokio::time::Instant;

use crate::store::Grant;

/// Permits of an endpoint of unknown standing: enough to test it, and few when a thousand are new at once.
const UNKNOWN_PERMITS: usize = 1;

/// Permits of a failing endpoint: enough to make its deliveries' attempts about as fast as scheduled.
const FAILING_PERMITS: usize = 8;

/// Deliveries that are claimed for an endpoint should be sent within about this time.
const SEND_WITHIN: Duration = Duration::from_millis(500);

/// How long an endpoint's standing is remembered.
const STANDING_PERIOD: Duration = Duration::from_secs(600);

/// With more remembered endpoints than this, idle ones are forgotten.
const MAX_REMEMBERED: usize = 50_000;

/// Maximum permits of one grant, which limits the memory of one claim.
const PERMITS_PER_GRANT: usize = 512;

/// Limits of requests in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum to one endpoint.
    pub(crate) per_endpoint: usize,
    /// Maximum to the endpoints of one account.
    pub(crate) per_account: usize,
    /// Maximum in total.
    pub(crate) per_process: usize,
    /// Bytes of bodies in memory above which nothing more is claimed.
    pub(crate) bytes: usize,
}

/// The result of a claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The number of retries.
    pub(crate) retries: usize,
    /// The number of first attempts.
    pub(crate) firsts: usize,
    /// The bytes of their bodies.
    pub(crate) bytes: usize,
}

/// The permit of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permit {
    /// The endpoint.
    pub(crate) endpoint_id: EndpointId,
    /// Whether the attempt is the delivery's first.
    pub(crate) is_first: bool,
    /// The bytes of the delivery's body.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
struct Endpoint {
    account_id: AccountId,
    in_flight: usize,
    standing: Standing,
    /// When the standing was last confirmed.
    seen: Instant,
    /// The average duration of its last requests.
    took: Duration,
    /// Whether it waits for its turn.
    queued: bool,
    /// Whether it may have due retries.
    has_retries: bool,
}

impl Endpoint {
    /// Returns how many deliveries are claimed, as a multiple of the requests in flight: the faster it answers, the
    /// more.
    fn ahead(&self) -> usize {
        let rounds = SEND_WITHIN.as_millis() / self.took.as_millis().max(1);
        usize::try_from(rounds).unwrap_or(AHEAD).clamp(1, AHEAD)
    }
}

/// Endpoints that may have due deliveries, and the permits in use.
#[derive(Debug)]
pub(crate) struct Slots {
    limits: Limits,
    process: Pool,
    bytes: usize,
    accounts: HashMap<AccountId, Pool>,
    endpoints: HashMap<EndpointId, Endpoint>,
    /// Waiting endpoints by standing, in the order of their turns.
    waiting: HashMap<Standing, VecDeque<EndpointId>>,
}

impl Slots {
    /// Creates it with all permits free.
    #[must_use]
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            process: Pool::default(),
            bytes: 0,
            accounts: HashMap::new(),
            endpoints: HashMap::new(),
            waiting: Standing::ALL.map(|standing| (standing, VecDeque::new())).into(),
        }
    }

    /// Returns how many permits are in use.
    #[must_use]
    pub(crate) fn in_flight(&self) -> usize {
        self.process.total
    }

    /// Returns how many bytes of bodies are in memory.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues an endpoint that may have due deliveries, after those that wait already.
    pub(crate) fn wake(&mut self, endpoint_id: EndpointId, account_id: AccountId, has_retries: bool) {
        let endpoint = self.endpoint(endpoint_id, account_id);
        endpoint.has_retries |= has_retries;
        self.queue(endpoint_id);
    }

    /// Takes permits for the endpoints whose turn it is.
    ///
    /// Free permits are divided evenly; when there are fewer than endpoints, those that waited longest get one.
    pub(crate) fn grant(&mut self) -> Vec<Grant> {
        let mut grants = Vec::new();
        if self.bytes >= self.limits.bytes {
            return grants;
        }
        let waiting: usize = self.waiting.values().map(VecDeque::len).sum();
        let free = self.process.room(Standing::Proven, self.limits.per_process);
        let share = free.checked_div(waiting).unwrap_or(0).max(1);
        let mut left = PERMITS_PER_GRANT;
        for standing in Standing::ALL {
            let turns = self.waiting.get(&standing).map_or(0, VecDeque::len);
            for _ in 0..turns {
                if left == 0 || self.process.room(standing, self.limits.per_process) == 0 {
                    break;
                }
                let Some(endpoint_id) = self.waiting.get_mut(&standing).and_then(VecDeque::pop_front) else {
                    break;
                };
                let Some(endpoint) = self.endpoints.get_mut(&endpoint_id) else { continue };
                endpoint.queued = false;
                if let Some(grant) = self.take(endpoint_id, share.min(left)) {
                    left -= grant.slots;
                    grants.push(grant);
                } else {
                    self.queue(endpoint_id);
                }
            }
        }
        grants
    }

    /// Takes permits for first attempts of an endpoint without waiting deliveries; `None` when it must wait for its
    /// turn.
    pub(crate) fn offer(
        &mut self,
        endpoint_id: EndpointId,
        account_id: AccountId,
        wanted: usize,
    ) -> Option<Grant> {
        let endpoint = self.endpoint(endpoint_id, account_id);
        if endpoint.queued || self.bytes >= self.limits.bytes {
            return None;
        }
        let endpoint = self.endpoints.get(&endpoint_id)?;
        let firsts = self.room(endpoint).min(self.room_for_firsts(endpoint)).min(wanted);
        if firsts == 0 {
            return None;
        }
        Some(self.count(Grant { endpoint_id, slots: firsts, firsts }))
    }

    /// Settles a grant after a claim: returns unused permits, and queues the endpoint again if it used all of them,
    /// because it may have more deliveries.
    pub(crate) fn claimed(&mut self, grant: Grant, claim: Claim) {
        let used = claim.retries + claim.firsts;
        let unused_firsts = grant.firsts.saturating_sub(claim.firsts);
        // A retry used a permit that allowed a first attempt.
        self.give(grant.endpoint_id, grant.slots.saturating_sub(used), unused_firsts);
        self.bytes += claim.bytes;
        if claim.retries >= grant.slots
            && let Some(endpoint) = self.endpoints.get_mut(&grant.endpoint_id)
        {
            endpoint.has_retries = true;
        }
        if used >= grant.slots || claim.firsts >= grant.firsts {
            self.queue(grant.endpoint_id);
        }
    }

    /// Returns a whole grant that could not be used; the endpoint keeps its turn.
    pub(crate) fn unused(&mut self, grant: Grant) {
        self.give(grant.endpoint_id, grant.slots, grant.firsts);
        if let Some(endpoint) = self.endpoints.get_mut(&grant.endpoint_id) {
            endpoint.has_retries = true;
        }
        self.queue(grant.endpoint_id);
    }

    /// Frees the permit of a settled attempt; `standing` is the endpoint's standing according to it, if any, and `took`
    /// the duration of its request.
    pub(crate) fn ended(&mut self, permit: Permit, standing: Option<Standing>, took: Duration) {
        if let Some(standing) = standing {
            self.stands(permit.endpoint_id, standing);
            if let Some(endpoint) = self.endpoints.get_mut(&permit.endpoint_id) {
                endpoint.took = (endpoint.took * 7 + took) / 8;
            }
        }
        self.bytes = self.bytes.saturating_sub(permit.bytes);
        self.give(permit.endpoint_id, 1, usize::from(permit.is_first));
    }

    /// Records that an attempt that began at `since` is slow. Unless another one succeeded since, its endpoint counts
    /// as failing before the timeout.
    pub(crate) fn slow(&mut self, endpoint_id: EndpointId, since: Instant) {
        let answered_since =
            |endpoint: &Endpoint| endpoint.standing == Standing::Proven && endpoint.seen > since;
        if self.endpoints.get(&endpoint_id).is_some_and(|endpoint| !answered_since(endpoint)) {
            self.stands(endpoint_id, Standing::Failing);
        }
    }

    fn endpoint(&mut self, endpoint_id: EndpointId, account_id: AccountId) -> &mut Endpoint {
        if self.endpoints.len() >= MAX_REMEMBERED {
            self.endpoints.retain(|_, endpoint| endpoint.queued || endpoint.in_flight > 0);
        }
        let now = Instant::now();
        let endpoint = self.endpoints.entry(endpoint_id).or_insert_with(|| Endpoint {
            account_id,
            in_flight: 0,
            standing: Standing::Unknown,
            seen: now,
            took: SEND_WITHIN,
            queued: false,
            has_retries: false,
        });
        if endpoint.in_flight == 0 && !endpoint.queued && now.duration_since(endpoint.seen) > STANDING_PERIOD
        {
            endpoint.standing = Standing::Unknown;
        }
        endpoint
    }

    fn queue(&mut self, endpoint_id: EndpointId) {
        if let Some(endpoint) = self.endpoints.get_mut(&endpoint_id)
            && !endpoint.queued
        {
            endpoint.queued = true;
            self.waiting.entry(endpoint.standing).or_default().push_back(endpoint_id);
        }
    }

    /// Takes permits for an endpoint whose turn it is; `None` when it cannot use one now.
    fn take(&mut self, endpoint_id: EndpointId, share: usize) -> Option<Grant> {
        let endpoint = self.endpoints.get(&endpoint_id)?;
        let slots = self.room(endpoint).min(share);
        let firsts = self.room_for_firsts(endpoint).min(slots);
        if slots == 0 || (firsts == 0 && !endpoint.has_retries) {
            return None;
        }
        if let Some(endpoint) = self.endpoints.get_mut(&endpoint_id) {
            endpoint.has_retries = false;
        }
        Some(self.count(Grant { endpoint_id, slots, firsts }))
    }

    fn count(&mut self, grant: Grant) -> Grant {
        if let Some(endpoint) = self.endpoints.get_mut(&grant.endpoint_id) {
            endpoint.in_flight += grant.slots;
            self.process.take(endpoint.standing, grant.slots, grant.firsts);
            let account = self.accounts.entry(endpoint.account_id).or_default();
            account.take(endpoint.standing, grant.slots, grant.firsts);
        }
        grant
    }

    fn give(&mut self, endpoint_id: EndpointId, permits: usize, firsts: usize) {
        let Some(endpoint) = self.endpoints.get_mut(&endpoint_id) else { return };
        endpoint.in_flight -= permits;
        self.process.give(endpoint.standing, permits, firsts);
        if let Some(account) = self.accounts.get_mut(&endpoint.account_id) {
            account.give(endpoint.standing, permits, firsts);
            if *account == Pool::default() {
                self.accounts.remove(&endpoint.account_id);
            }
        }
    }

    fn stands(&mut self, endpoint_id: EndpointId, standing: Standing) {
        let Some(endpoint) = self.endpoints.get_mut(&endpoint_id) else { return };
        let before = std::mem::replace(&mut endpoint.standing, standing);
        endpoint.seen = Instant::now();
        if before == standing {
            return;
        }
        if endpoint.queued {
            // Moved to the queue of its new standing, because failing endpoints may wait long for a turn.
            if let Some(queue) = self.waiting.get_mut(&before)
                && let Some(place) = queue.iter().position(|waiting| *waiting == endpoint_id)
            {
                queue.remove(place);
            }
            self.waiting.entry(standing).or_default().push_back(endpoint_id);
        }
        self.process.move_to(before, standing, endpoint.in_flight);
        if let Some(account) = self.accounts.get_mut(&endpoint.account_id) {
            account.move_to(before, standing, endpoint.in_flight);
        }
    }

    fn room(&self, endpoint: &Endpoint) -> usize {
        let own = match endpoint.standing {
            Standing::Proven => self.limits.per_endpoint * endpoint.ahead(),
            Standing::Unknown => UNKNOWN_PERMITS.min(self.limits.per_endpoint),
            Standing::Failing => FAILING_PERMITS.min(self.limits.per_endpoint),
        };
        let account = self.accounts.get(&endpoint.account_id).copied().unwrap_or_default();
        own.saturating_sub(endpoint.in_flight)
            .min(account.room(endpoint.standing, self.limits.per_account))
            .min(self.process.room(endpoint.standing, self.limits.per_process))
    }

    fn room_for_firsts(&self, endpoint: &Endpoint) -> usize {
        let account = self.accounts.get(&endpoint.account_id).copied().unwrap_or_default();
        account
            .room_for_firsts(self.limits.per_account)
            .min(self.process.room_for_firsts(self.limits.per_process))
    }
}

#[cfg(test)]
mod tests;
