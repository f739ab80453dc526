//! Finished attempts, which are settled in batches.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::attempt::{Claimed, Outcome};

/// An attempt that ended, with what its outcome applies to.
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
    /// How long to wait until the next attempt, should there be one.
    pub(crate) wait: Duration,
}
