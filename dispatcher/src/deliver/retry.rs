//! The wait before a retry.

use std::time::Duration;

use chrono::{DateTime, Utc};
use schemas::message::MAX_ATTEMPTS;

/// The longest wait that a receiver may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(15 * 60);

/// The maximum random addition, as a fraction of the wait, so that deliveries that failed together are not retried
/// together. It only adds: no attempt is earlier than scheduled.
const JITTER: f64 = 0.1;

/// Returns the wait after the end of attempt number `attempt`, counted from 1.
///
/// The wait doubles from `base`. `random` is in `0.0..1.0`. A receiver's `retry_after` can extend the wait but not
/// shorten it.
#[must_use]
pub(crate) fn wait(attempt: u16, base: Duration, random: f64, retry_after: Option<Duration>) -> Duration {
    let doublings = u32::from(attempt.clamp(1, MAX_ATTEMPTS) - 1);
    let scheduled = base.saturating_mul(1 << doublings).mul_f64(1.0 + JITTER * random.clamp(0.0, 1.0));
    scheduled.max(retry_after.unwrap_or_default())
}

/// Parses a `Retry-After` header: seconds or an HTTP date, at most 15 minutes; `None` for anything else.
#[must_use]
pub(crate) fn retry_after(value: &str, now: DateTime<Utc>) -> Option<Duration> {
    let value = value.trim();
    let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number beyond `u64` is a very long wait.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let until = DateTime::parse_from_rfc2822(value).ok()?;
        // A time in the past means no wait.
        (until.to_utc() - now).to_std().unwrap_or_default()
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: Duration = Duration::from_secs(10);

    fn now() -> DateTime<Utc> {
        "2026-09-21T13:33:20Z".parse().unwrap()
    }

    #[test]
    fn waits_double_from_ten_seconds() {
        let waits: Vec<u64> =
            (1..MAX_ATTEMPTS).map(|attempt| wait(attempt, BASE, 0.0, None).as_secs()).collect();
        assert_eq!(waits, [10, 20, 40, 80]);
    }

    #[test]
    fn a_receiver_can_only_extend_the_wait() {
        let asked = |seconds| wait(1, BASE, 0.0, Some(Duration::from_secs(seconds))).as_secs();
        assert_eq!((asked(0), asked(9), asked(30)), (10, 10, 30));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        for (value, seconds) in [
            ("30", Some(30)),
            (" 0 ", Some(0)),
            ("Mon, 21 Sep 2026 13:33:50 GMT", Some(30)),
            ("Mon, 21 Sep 2026 13:00:00 GMT", Some(0)),
            ("Fri, 21 Sep 2096 13:33:50 GMT", Some(900)),
            ("1000000000", Some(900)),
            ("99999999999999999999999", Some(900)),
            ("-5", None),
            ("+5", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(retry_after(value, now()), seconds.map(Duration::from_secs), "{value}");
        }
    }

    proptest! {
        #[test]
        fn jitter_adds_at_most_a_tenth(attempt in 1..MAX_ATTEMPTS, random in 0.0..1.0) {
            let scheduled = wait(attempt, BASE, 0.0, None);
            let jittered = wait(attempt, BASE, random, None);
            prop_assert!(jittered >= scheduled && jittered <= scheduled.mul_f64(1.1));
        }

        #[test]
        fn retry_after_is_at_most_fifteen_minutes(value in "\\PC*") {
            prop_assert!(retry_after(&value, now()).unwrap_or_default() <= MAX_RETRY_AFTER);
        }
    }
}
