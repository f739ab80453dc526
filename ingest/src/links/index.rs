//! One way to find a link: by its slug, or by its id.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use hashbrown::{HashTable, hash_table::Entry};
use schemas::id::LinkId;

use super::Target;

/// How many locks share the links. Who looks up waits for a writer only while that puts one link into one shard; at
/// ten million links a shard that grows moves ten thousand pointers.
const SHARDS: usize = 1024;

type Shard = HashTable<Arc<Target>>;

/// What links are found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key<'a> {
    /// By what visitors ask for.
    Slug(&'a str),
    /// By what never changes.
    Id(LinkId),
}

/// Links by one key. The key is not stored: it is in the link, and a link costs a pointer here.
pub(super) struct Index {
    hasher: RandomState,
    key: fn(&Target) -> Key<'_>,
    shards: Box<[RwLock<Shard>]>,
}

impl Index {
    /// Makes an index by what `key` says of a link.
    pub(super) fn new(key: fn(&Target) -> Key<'_>) -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { hasher: RandomState::new(), key, shards }
    }

    pub(super) fn find(&self, key: Key<'_>) -> Option<Arc<Target>> {
        let hash = self.hasher.hash_one(key);
        self.read(hash).find(hash, |target| (self.key)(target) == key).cloned()
    }

    /// Puts a link in the place of whichever has its key, and returns that one.
    pub(super) fn put(&self, target: Arc<Target>) -> Option<Arc<Target>> {
        let key = (self.key)(&target);
        let hash = self.hasher.hash_one(key);
        let mut shard = self.write(hash);
        let is_it = |other: &Arc<Target>| (self.key)(other) == key;
        match shard.find_mut(hash, is_it) {
            Some(place) => Some(std::mem::replace(place, target)),
            None => {
                let rehash = |target: &Arc<Target>| self.hasher.hash_one((self.key)(target));
                shard.insert_unique(hash, target, rehash);
                None
            }
        }
    }

    /// Removes the link of that key.
    pub(super) fn remove(&self, key: Key<'_>) -> Option<Arc<Target>> {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.write(hash);
        let rehash = |target: &Arc<Target>| self.hasher.hash_one((self.key)(target));
        match shard.entry(hash, |target| (self.key)(target) == key, rehash) {
            Entry::Occupied(entry) => Some(entry.remove().0),
            Entry::Vacant(_) => None,
        }
    }

    /// Returns the links shard by shard; each shard's are of one moment.
    pub(super) fn shards(&self) -> impl Iterator<Item = Vec<Arc<Target>>> {
        self.shards
            .iter()
            .map(|shard| shard.read().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect())
    }

    fn read(&self, hash: u64) -> RwLockReadGuard<'_, Shard> {
        self.shard(hash).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, hash: u64) -> RwLockWriteGuard<'_, Shard> {
        self.shard(hash).write().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        // Bits that the table within the shard does not go by: it takes the lowest and the highest seven.
        &self.shards[(hash >> 40) as usize % SHARDS]
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Index").finish_non_exhaustive()
    }
}
