//! An index of links by slug or by id.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use schemas::id::LinkId;

use crate::links::target::Target;

/// The number of shards, each with its own lock. A reader waits only for a writer that changes one link of the same
/// shard. At ten million links, a shard that grows moves ten thousand pointers.
const SHARDS: usize = 1024;

type Shard = HashTable<Arc<Target>>;

/// The key of a link in an [`Index`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key<'a> {
    Slug(&'a str),
    Id(LinkId),
}

/// Links by one key. A link costs one pointer: the key is read from the link.
pub(super) struct Index {
    hasher: RandomState,
    key: fn(&Target) -> Key<'_>,
    shards: Box<[RwLock<Shard>]>,
}

impl Index {
    /// Creates an index by the key that `key` returns for a link.
    pub(super) fn new(key: fn(&Target) -> Key<'_>) -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { hasher: RandomState::new(), key, shards }
    }

    pub(super) fn find(&self, key: Key<'_>) -> Option<Arc<Target>> {
        let hash = self.hasher.hash_one(key);
        self.read(hash).find(hash, |target| (self.key)(target) == key).cloned()
    }

    /// Inserts a link and returns the one with the same key that it replaces.
    pub(super) fn put(&self, target: Arc<Target>) -> Option<Arc<Target>> {
        let key = (self.key)(&target);
        let hash = self.hasher.hash_one(key);
        let mut shard = self.write(hash);
        match shard.find_mut(hash, |other| (self.key)(other) == key) {
            Some(present) => Some(std::mem::replace(present, target)),
            None => {
                shard.insert_unique(hash, target, |target| self.hash(target));
                None
            }
        }
    }

    /// Removes and returns the link with this key.
    pub(super) fn remove(&self, key: Key<'_>) -> Option<Arc<Target>> {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.write(hash);
        match shard.entry(hash, |target| (self.key)(target) == key, |target| self.hash(target)) {
            Entry::Occupied(entry) => Some(entry.remove().0),
            Entry::Vacant(_) => None,
        }
    }

    /// Returns the links of each shard. A shard is consistent in itself; different shards are read at different times.
    pub(super) fn shards(&self) -> impl Iterator<Item = Vec<Arc<Target>>> {
        self.shards.iter().map(|shard| shard.read().iter().cloned().collect())
    }

    fn hash(&self, target: &Target) -> u64 {
        self.hasher.hash_one((self.key)(target))
    }

    fn read(&self, hash: u64) -> RwLockReadGuard<'_, Shard> {
        self.shard(hash).read()
    }

    fn write(&self, hash: u64) -> RwLockWriteGuard<'_, Shard> {
        self.shard(hash).write()
    }

    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        // The hash table within a shard uses the lowest bits and the highest seven.
        &self.shards[(hash >> 40) as usize % SHARDS]
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Index").finish_non_exhaustive()
    }
}
