//! What lanes and [`crate::pipeline::lanes`] tell each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use chrono::{DateTime, Utc};

use crate::clickhouse::FencingToken;
use crate::pipeline::chunk::Chunk;

/// The state that a lane publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The phase of its partition.
    pub phase: Phase,
    /// Its last request to seek.
    pub seek: Option<Seek>,
}

/// A lane's request for the records from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seek {
    /// The offset.
    pub to: u64,
    /// The number of the request, which grows.
    pub number: u64,
}

/// What a lane receives.
#[derive(Debug)]
pub enum Inbound {
    /// Records of the partition.
    Chunk(Chunk, Queued),
    /// The [`Seek`] of this number is done: the following records are those it requested.
    SeekDone(u64),
}

/// What other tasks tell a lane about its own work, each with the lane's token at that time.
#[derive(Debug, Default)]
pub struct Notices {
    /// The time up to which its clicks are counted, as stored in ClickHouse.
    pub counted: Option<(FencingToken, DateTime<Utc>)>,
    /// Kafka's log or ClickHouse ends before the lane's position.
    pub lost: Option<FencingToken>,
}

impl Notices {
    /// Returns the time up to which clicks are counted under a token, if it is known.
    pub fn as_of(&self, token: FencingToken) -> Option<DateTime<Utc>> {
        self.counted.filter(|(counted, _)| *counted == token).map(|(_, as_of)| as_of)
    }
}

/// Counts the memory of records in a lane's inbox until it is dropped.
#[derive(Debug)]
pub struct Queued {
    bytes: usize,
    lane_bytes: Arc<AtomicUsize>,
}

impl Queued {
    /// Adds to a lane's queued bytes.
    pub fn add(bytes: usize, lane_bytes: &Arc<AtomicUsize>) -> Self {
        lane_bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, lane_bytes: Arc::clone(lane_bytes) }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.lane_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The phase of a lane's partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It has no token yet, or no longer.
    TakingOver,
    /// It owns the partition.
    Owned {
        /// The token of its inserts.
        token: FencingToken,
        /// The time up to which its clicks are counted, as it is known to be stored in ClickHouse.
        as_of: Option<DateTime<Utc>>,
        /// Everything below this offset is processed.
        next: u64,
        /// The broker's time of the last processed row, if there is one.
        broker_ts: Option<DateTime<Utc>>,
    },
    /// It must not take the partition over; the text says why and what to do.
    Blocked(String),
}
