//! A limit for log lines that a lasting fault repeats.

use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// One line in ten seconds.
pub(crate) const QUOTA: Quota =
    Quota::per_minute(NonZeroU32::MIN.saturating_add(5)).allow_burst(NonZeroU32::MIN);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_logged_at_first_and_not_repeated_at_once() {
        let limit = LogLimit::default();
        assert!(limit.is_due());
        assert!(!limit.is_due());
    }
}
