//! Assigns clients to a bounded number of buckets.

use std::hash::{BuildHasher as _, Hash, RandomState};

/// Buckets that clients share, so that limits for each client take bounded memory.
///
/// The hash that assigns a bucket is drawn at each start, so nobody can choose whose bucket to exhaust.
#[derive(Debug)]
pub struct Buckets {
    count: u64,
    hash: RandomState,
}

impl Buckets {
    /// Creates this many buckets, at least one.
    #[must_use]
    pub fn new(count: u64) -> Self {
        Self { count: count.max(1), hash: RandomState::new() }
    }

    /// Returns the number of a client's bucket.
    pub fn of(&self, client: impl Hash) -> u64 {
        self.hash.hash_one(client) % self.count
    }
}
