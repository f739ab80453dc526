//! A limit for log lines that a lasting fault repeats.

use std::hash::Hash;
use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};

/// One line in ten seconds.
const QUOTA: Quota = Quota::per_minute(NonZeroU32::MIN.saturating_add(5)).allow_burst(NonZeroU32::MIN);

/// Limits a repeated log line to one in ten seconds.
#[derive(Debug)]
pub struct LogLimit(DefaultDirectRateLimiter);

impl LogLimit {
    /// Whether to log the line now.
    pub fn is_due(&self) -> bool {
        self.0.check().is_ok()
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self(RateLimiter::direct(QUOTA))
    }
}

/// Limits the repeated log lines of each key to one in ten seconds.
#[derive(Debug)]
pub struct KeyedLogLimit<K: Clone + Eq + Hash>(DefaultKeyedRateLimiter<K>);

impl<K: Clone + Eq + Hash> KeyedLogLimit<K> {
    /// Whether to log the line of this key now.
    pub fn is_due(&self, key: &K) -> bool {
        let is_due = self.0.check_key(key).is_ok();
        // Only with a line, because it visits every key.
        if is_due {
            self.0.retain_recent();
        }
        is_due
    }
}

impl<K: Clone + Eq + Hash> Default for KeyedLogLimit<K> {
    fn default() -> Self {
        Self(RateLimiter::keyed(QUOTA))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_logged_at_first_and_not_repeated_at_once() {
        let limit = LogLimit::default();
        assert!(limit.is_due());
        assert!(!limit.is_due());
    }

    #[test]
    fn each_key_has_its_own_limit() {
        let limit = KeyedLogLimit::default();
        assert!(limit.is_due(&1) && limit.is_due(&2));
        assert!(!limit.is_due(&1));
    }
}
