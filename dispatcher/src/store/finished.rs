//! Finished attempts, which are settled in batches.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::attempt::{Claimed, Outcome};

/// An attempt that ended, and its delivery.
#[derive(Debug, Clone)]
pub(crate) struct Finished {
    /// The delivery, with the lease under which the attempt was made.
    pub(crate) delivery: Claimed,
    /// How the attempt ended.
    pub(crate) outcome: Outcome,
    /// When the attempt ended.
    pub(crate) ended_at: DateTime<Utc>,
    /// How long the request took; zero when there was none.
    pub(crate) took: Duration,
    /// The wait until the next attempt, if there is one.
    pub(crate) wait: Duration,
}
