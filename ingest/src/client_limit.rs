//! The limit of clicks of one client, beyond which its clicks count as those of a bot.
//!
//! They are redirected and stored like others, so no visitor behind a shared address is turned away; only the default
//! counts, which are those of people, ignore them.

use std::net::IpAddr;
use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use metrics::{Counter, counter};
use service::http::{Buckets, client_network};

/// Buckets that clients share.
const BUCKETS: u64 = 65_536;

/// Counts the clicks of each client.
#[derive(Debug)]
pub struct ClientLimit {
    /// The limit of each bucket; `None` without one.
    limiter: Option<DefaultKeyedRateLimiter<u64>>,
    buckets: Buckets,
    exceeded: Counter,
}

impl ClientLimit {
    /// Allows each client `per_minute` clicks; 0 is no limit.
    pub fn new(per_minute: u32) -> Self {
        Self {
            limiter: NonZeroU32::new(per_minute).map(|limit| RateLimiter::keyed(Quota::per_minute(limit))),
            buckets: Buckets::new(BUCKETS),
            exceeded: counter!("hopline_clicks_over_limit_total"),
        }
    }

    /// Counts a click of a client, and returns whether it is above the limit. An IPv6 /64 network is one client.
    pub fn is_exceeded(&self, address: IpAddr) -> bool {
        let Some(limiter) = &self.limiter else { return false };
        let is_exceeded = limiter.check_key(&self.buckets.of(client_network(address))).is_err();
        if is_exceeded {
            self.exceeded.increment(1);
        }
        is_exceeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_limit_and_a_64_network_is_one_client() {
        let limit = ClientLimit::new(2);
        let is_exceeded = |address: &str| limit.is_exceeded(address.parse().unwrap());
        assert!(!is_exceeded("2001:db8::1") && !is_exceeded("2001:db8::2"));
        assert!(is_exceeded("2001:db8::3"));
        assert!(!is_exceeded("192.0.2.1") && !is_exceeded("::ffff:192.0.2.1"));
        assert!(is_exceeded("192.0.2.1"));
    }

    #[test]
    fn zero_means_no_limit() {
        let limit = ClientLimit::new(0);
        assert!((0..10_000).all(|_| !limit.is_exceeded(IpAddr::from([192, 0, 2, 1]))));
    }
}
