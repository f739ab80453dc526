//! Rate limits, and the three headers that state them on every answer.
//!
//! A request with a valid key counts for its account, in Postgres, in the statement that finds the key (see
//! [`crate::web::caller`]): a fixed window of one minute over all keys, workspaces and instances. A request of the
//! dashboard counts for the member, any other for the client's address, in this instance's memory. So does a key or a
//! session that this instance does not know: the address's budget is asked before Postgres is, and guesses cost no
//! statement beyond it.

use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use chrono::{DateTime, Timelike as _, Utc};
use governor::clock::{Clock as _, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::{Quota, RateLimiter};
use http::{HeaderMap, HeaderValue, Request};
use service::config::Cidrs;
use service::http::{ApiError, Buckets, Peer, came_over_tls, client_address, client_network};
use uuid::Uuid;
use warp::{Filter, Rejection};

use crate::error::database;

/// Buckets that addresses and members share.
const BUCKETS: u64 = 100_000;

/// "Unlimited" in a header: the largest number that every client can read.
const UNLIMITED: i64 = i32::MAX as i64;

/// Returns the time until the next day begins in UTC.
pub(crate) fn until_midnight(now: DateTime<Utc>) -> Duration {
    Duration::from_secs(u64::from(86_400 - now.num_seconds_from_midnight()))
}

/// What is left of a caller's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    limit: i64,
    remaining: i64,
    /// When the full limit is available again.
    reset: DateTime<Utc>,
}

impl Budget {
    /// Returns the budget of an account after `used` requests in the window that ends at `reset`.
    pub(crate) fn of_account(limit: Option<i64>, used: i64, reset: DateTime<Utc>) -> Self {
        match limit {
            Some(limit) => Self { limit, remaining: (limit - used).max(0), reset },
            None => Self { limit: UNLIMITED, remaining: UNLIMITED, reset },
        }
    }

    /// Returns the 429 for a request above the limit.
    pub(crate) fn exceeded(&self) -> ApiError {
        let wait = (self.reset - Utc::now()).to_std().unwrap_or_default();
        ApiError::rate_limited(format!(
            "More than {} requests in a minute. Try again when the minute is over.",
            self.limit
        ))
        .with_retry_after(wait)
    }

    /// Writes the three headers.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        // Rounded up, so that a client that waits is not too early.
        let reset = self.reset.timestamp() + i64::from(self.reset.timestamp_subsec_nanos() > 0);
        headers.insert("x-ratelimit-limit", HeaderValue::from(self.limit));
        headers.insert("x-ratelimit-remaining", HeaderValue::from(self.remaining));
        headers.insert("x-ratelimit-reset", HeaderValue::from(reset));
    }
}

/// The limits of addresses and members.
#[derive(Clone)]
pub(crate) struct AddressLimits(Arc<Addresses>);

struct Addresses {
    /// The limit of each bucket.
    limiter: Limiter,
    buckets: Buckets,
    clock: DefaultClock,
    per_minute: NonZeroU32,
    trusted: Cidrs,
    known: Known,
}

/// Keys and sessions that this instance has accepted, so that failures of others at their address do not stop them. A
/// place holds a part of the latest one's digest.
struct Known(Box<[AtomicU64]>);

impl Known {
    fn new() -> Self {
        Self((0..=u16::MAX).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns the place of a digest, and what that place holds when it is known.
    fn place(&self, digest: &[u8; 32]) -> (&AtomicU64, u64) {
        let [first, second, part @ ..] = digest.first_chunk::<10>().unwrap_or(&[0; 10]);
        (&self.0[usize::from(u16::from_be_bytes([*first, *second]))], u64::from_be_bytes(*part))
    }

    fn contains(&self, digest: &[u8; 32]) -> bool {
        let (place, part) = self.place(digest);
        place.load(Ordering::Relaxed) == part
    }

    fn insert(&self, digest: &[u8; 32]) {
        let (place, part) = self.place(digest);
        place.store(part, Ordering::Relaxed);
    }

    fn remove(&self, digest: &[u8; 32]) {
        let (place, part) = self.place(digest);
        // Another one may have its place meanwhile.
        let _ = place.compare_exchange(part, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

type Limiter = RateLimiter<
    u64,
    governor::state::keyed::DefaultKeyedStateStore<u64>,
    DefaultClock,
    StateInformationMiddleware,
>;

impl AddressLimits {
    /// Allows each address `per_minute` requests. Forwarded addresses of `trusted` proxies are believed.
    pub(crate) fn new(per_minute: NonZeroU32, trusted: Cidrs) -> Self {
        let quota = Quota::per_minute(per_minute);
        let limiter = RateLimiter::keyed(quota).with_middleware::<StateInformationMiddleware>();
        let clock = DefaultClock::default();
        let (buckets, known) = (Buckets::new(BUCKETS), Known::new());
        Self(Arc::new(Addresses { limiter, buckets, clock, per_minute, trusted, known }))
    }

    /// Prepares to count a request.
    pub(crate) fn visit<B>(&self, request: &Request<B>) -> Visit {
        let peer = request.extensions().get::<Peer>().map(|Peer(peer)| peer.ip());
        let address = peer
            .map_or(IpAddr::from([0; 4]), |peer| client_address(peer, request.headers(), &self.0.trusted));
        let is_tls = peer.is_some_and(|peer| came_over_tls(peer, request.headers(), &self.0.trusted));
        Visit(Arc::new(Asked { address, is_tls, limits: self.clone(), budget: OnceLock::new() }))
    }

    /// Counts one request of an address. `Err` is the budget when it is above the limit.
    fn charge(&self, address: IpAddr) -> Result<Budget, Budget> {
        self.charge_client(client_network(address))
    }

    fn charge_client(&self, client: impl Hash) -> Result<Budget, Budget> {
        let addresses = &*self.0;
        let limit = i64::from(addresses.per_minute.get());
        let interval = Duration::from_secs(60) / addresses.per_minute.get();
        match addresses.limiter.check_key(&addresses.buckets.of(client)) {
            Ok(state) => {
                let remaining = state.remaining_burst_capacity();
                let used = addresses.per_minute.get().saturating_sub(remaining);
                Ok(Budget { limit, remaining: i64::from(remaining), reset: Utc::now() + interval * used })
            }
            Err(refusal) => {
                let wait = refusal.wait_time_from(addresses.clock.now());
                Err(Budget { limit, remaining: 0, reset: Utc::now() + wait })
            }
        }
    }
}

/// The client of one request, and the budget that it counted for.
#[derive(Clone)]
pub(crate) struct Visit(Arc<Asked>);

struct Asked {
    address: IpAddr,
    is_tls: bool,
    limits: AddressLimits,
    budget: OnceLock<Budget>,
}

impl Visit {
    /// Returns the client's address, as reported by trusted proxies.
    pub(crate) fn address(&self) -> IpAddr {
        self.0.address
    }

    /// Returns whether the client uses TLS, as reported by a trusted proxy.
    pub(crate) fn is_tls(&self) -> bool {
        self.0.is_tls
    }

    /// Records which budget the request counted for; the first call holds.
    pub(crate) fn counted(&self, budget: Budget) {
        // Set before only when the same request was counted before.
        let _ = self.0.budget.set(budget);
    }

    /// Returns the budget that the request counted for.
    pub(crate) fn budget(&self) -> Option<Budget> {
        self.0.budget.get().copied()
    }

    /// Counts the request for its address.
    ///
    /// # Errors
    /// 429 above the address's limit.
    pub(crate) fn charge_address(&self) -> Result<(), ApiError> {
        let charged = self.0.limits.charge(self.0.address);
        self.counted(charged.unwrap_or_else(|left| left));
        charged.map(|_| ()).map_err(|left| left.exceeded())
    }

    /// Looks a key or a session up, by its digest. The request counts for its address unless this instance knows it.
    ///
    /// # Errors
    /// 429 above the address's limit: what is not known is not looked up then. 503 without Postgres.
    pub(crate) async fn look_up<T>(
        &self,
        digest: &[u8; 32],
        find: impl Future<Output = sqlx::Result<Option<T>>>,
    ) -> Result<Option<T>, ApiError> {
        let limits = &self.0.limits;
        let known = &limits.0.known;
        let charged = match known.contains(digest) {
            true => None,
            false => Some(limits.charge(self.0.address).map_err(|left| {
                self.counted(left);
                left.exceeded()
            })?),
        };
        let found = find.await.map_err(database);
        match (&found, charged) {
            (Ok(Some(_)), _) => known.insert(digest),
            (Ok(None) | Err(_), Some(budget)) => self.counted(budget),
            // It is not valid any more, and is not looked up for ever.
            (Ok(None), None) => {
                known.remove(digest);
                self.charge_address()?;
            }
            (Err(_), None) => {}
        }
        found
    }

    /// Counts the request for a member, with the limit of an address. The account's budget is for its keys.
    ///
    /// # Errors
    /// 429 above the member's limit.
    pub(crate) fn charge_member(&self, user: Uuid) -> Result<(), ApiError> {
        let limits = &self.0.limits;
        let charged = limits.charge_client(user);
        self.counted(charged.unwrap_or_else(|left| left));
        charged.map(|_| ()).map_err(|left| left.exceeded())
    }
}

/// Extracts the request's [`Visit`].
pub(crate) fn visit() -> impl Filter<Extract = (Visit,), Error = Rejection> + Copy {
    warp::ext::get::<Visit>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(per_minute: u32) -> AddressLimits {
        AddressLimits::new(NonZeroU32::new(per_minute).unwrap(), Cidrs::default())
    }

    #[test]
    fn an_address_has_a_rate_limit() {
        let limits = limits(3);
        let address = IpAddr::from([198, 51, 100, 7]);
        let left: Vec<i64> = (0..3).map(|_| limits.charge(address).unwrap().remaining).collect();
        assert_eq!(left, [2, 1, 0]);
        let refused = limits.charge(address).unwrap_err();
        assert_eq!((refused.limit, refused.remaining), (3, 0));
        assert!(refused.reset > Utc::now());
        assert!(limits.charge(IpAddr::from([198, 51, 100, 8])).is_ok(), "addresses have separate budgets");
    }

    #[test]
    fn addresses_of_one_64_network_share_a_budget() {
        let limits = limits(1);
        assert!(limits.charge("2001:db8::1".parse().unwrap()).is_ok());
        assert!(limits.charge("2001:db8::2".parse().unwrap()).is_err());
        assert!(limits.charge("198.51.100.7".parse().unwrap()).is_ok());
        assert!(limits.charge("::ffff:198.51.100.7".parse().unwrap()).is_err());
    }

    #[tokio::test]
    async fn what_was_accepted_is_looked_up_beyond_the_budget_until_it_is_invalid() {
        let visit = limits(1).visit(&Request::new(()));
        let (valid, guess) = ([7; 32], [8; 32]);
        assert_eq!(visit.look_up(&valid, async { Ok(Some(1)) }).await.unwrap(), Some(1));
        let untouched = async { panic!("a guess beyond the budget is looked up") };
        assert_eq!(visit.look_up::<()>(&guess, untouched).await.unwrap_err().status(), 429);
        assert_eq!(visit.look_up(&valid, async { Ok(Some(2)) }).await.unwrap(), Some(2));
        let ended = visit.look_up::<()>(&valid, async { Ok(None) }).await;
        assert_eq!(ended.unwrap_err().status(), 429, "it counts for the address");
        let untouched = async { panic!("an ended one is looked up again") };
        assert_eq!(visit.look_up::<()>(&valid, untouched).await.unwrap_err().status(), 429);
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let limits = limits(10);
        for number in 0..300_000_u32 {
            let _ = limits.charge(IpAddr::from(number.to_be_bytes()));
        }
        assert!(limits.0.limiter.len() as u64 <= BUCKETS);
    }

    #[test]
    fn an_unlimited_account_has_the_largest_limit() {
        let mut headers = HeaderMap::new();
        Budget::of_account(None, 0, DateTime::from_timestamp(1_800_000_000, 1).unwrap()).write(&mut headers);
        assert_eq!(headers["x-ratelimit-limit"], "2147483647");
        assert_eq!(headers["x-ratelimit-remaining"], "2147483647");
        assert_eq!(headers["x-ratelimit-reset"], "1800000001");
    }
}
