//! The time, for work that must not run too early.
//!
//! A clock that runs ahead would close slices before their clicks arrive, and remove rows that a plan still shows. Such
//! work therefore uses ClickHouse's clock, and only while this machine's clock agrees with it.

use chrono::{DateTime, TimeDelta, Utc};

use crate::clickhouse::{Store, StoreError};

/// Maximum difference between this machine's clock and ClickHouse's.
const TOLERANCE: TimeDelta = TimeDelta::minutes(1);

/// ClickHouse's clock, and its difference from this machine's clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// The time by ClickHouse's clock, between the request and its answer.
    pub clickhouse: DateTime<Utc>,
    /// How far this machine's clock is ahead at least; negative when it is behind.
    ahead: TimeDelta,
}

/// The clocks differ too much to use either.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error(
    "this machine's clock is {} s {} ClickHouse's: set whichever is wrong. Until then no slice is closed and no row \
     removed",
    .0.num_seconds().abs(),
    if *.0 < TimeDelta::zero() { "behind" } else { "ahead of" }
)]
pub struct ClocksDiffer(TimeDelta);

impl Clock {
    /// Reads both clocks.
    ///
    /// # Errors
    /// When ClickHouse does not answer.
    pub async fn read(store: &Store) -> Result<Self, StoreError> {
        let asked_at = Utc::now();
        let clickhouse = store.now().await?;
        Ok(Self::compare(asked_at, clickhouse, Utc::now()))
    }

    fn compare(asked_at: DateTime<Utc>, clickhouse: DateTime<Utc>, answered_at: DateTime<Utc>) -> Self {
        let ahead = if asked_at > clickhouse {
            asked_at - clickhouse
        } else {
            (answered_at - clickhouse).min(TimeDelta::zero())
        };
        Self { clickhouse, ahead }
    }

    /// Returns the time if both clocks agree.
    ///
    /// # Errors
    /// [`ClocksDiffer`] when they do not.
    pub fn agreed(&self) -> Result<DateTime<Utc>, ClocksDiffer> {
        if self.ahead.abs() > TOLERANCE { Err(ClocksDiffer(self.ahead)) } else { Ok(self.clickhouse) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree_within_a_minute_and_the_time_that_the_answer_took() {
        let at = |seconds: i64| DateTime::from_timestamp(1_790_000_000 + seconds, 0).unwrap();
        for (asked_at, answered_at, ahead) in
            [(0, 0, 0), (-5, 90, 0), (60, 70, 60), (61, 70, 61), (-90, -60, -60), (-90, -61, -61)]
        {
            let clock = Clock::compare(at(asked_at), at(0), at(answered_at));
            assert_eq!(clock.ahead.num_seconds(), ahead);
            assert_eq!(clock.agreed().is_ok(), ahead.abs() <= 60);
        }
        let text = Clock::compare(at(7200), at(0), at(7201)).agreed().unwrap_err().to_string();
        assert!(text.starts_with("this machine's clock is 7200 s ahead of ClickHouse's"), "{text}");
        let text = Clock::compare(at(-7202), at(0), at(-7200)).agreed().unwrap_err().to_string();
        assert!(text.starts_with("this machine's clock is 7200 s behind ClickHouse's"), "{text}");
    }
}
