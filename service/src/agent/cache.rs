//! A cache of classified User-Agents: a look-up takes a thousandth of the time of a classification.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher, RandomState};
use std::mem;

use parking_lot::{Mutex, MutexGuard};

use super::classification::Agent;

const SHARDS: usize = 64;

/// Maximum number of texts in a generation of a shard.
const GENERATION: usize = 128;

/// The agents of recent texts: at most two generations per shard, about 16,000 texts and 10 MB.
///
/// A look-up moves a text into the young generation. A full young generation replaces the old one, whose texts are
/// evicted. Therefore even a flood of texts that occur once does not evict those that occur often.
pub(super) struct Cache {
    /// Randomly keyed, so that clients cannot choose texts that collide.
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

type Generation = HashMap<u64, Entry, BuildHasherDefault<AlreadyHashed>>;

#[derive(Default)]
struct Shard {
    young: Generation,
    old: Generation,
}

struct Entry {
    text: Box<str>,
    agent: Agent,
}

impl Cache {
    pub(super) fn new() -> Self {
        Self { hasher: RandomState::new(), shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Returns the agent of a text; calls `classify` for a text that is not in the cache.
    pub(super) fn get_or_insert(&self, text: &str, classify: impl FnOnce() -> Agent) -> Agent {
        let hash = self.hasher.hash_one(text);
        if let Some(agent) = self.shard(hash).get(hash, text) {
            return agent;
        }
        // Without the lock, which other threads need. Two threads get the same result for the same text.
        let agent = classify();
        self.shard(hash).insert(hash, Entry { text: text.into(), agent: agent.clone() });
        agent
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // High bits, because the maps use the low ones.
        let shard = (hash >> 48) as usize % SHARDS;
        self.shards[shard].lock()
    }
}

impl Shard {
    fn get(&mut self, hash: u64, text: &str) -> Option<Agent> {
        // Two texts may have the same hash.
        if let Some(entry) = self.young.get(&hash) {
            return (*entry.text == *text).then(|| entry.agent.clone());
        }
        let entry = self.old.remove(&hash).filter(|entry| *entry.text == *text)?;
        let agent = entry.agent.clone();
        self.insert(hash, entry);
        Some(agent)
    }

    fn insert(&mut self, hash: u64, entry: Entry) {
        if self.young.len() >= GENERATION {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(hash, entry);
    }
}

/// Returns the key itself, which is a hash.
#[derive(Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::classification::Class;
    use super::*;

    fn agent(class: Class) -> Agent {
        Agent { class, device_type: "other", browser: None, os: None }
    }

    fn texts(cache: &Cache) -> usize {
        let count = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.young.len() + shard.old.len()
        };
        cache.shards.iter().map(count).sum()
    }

    #[test]
    fn a_text_is_classified_once() {
        let (cache, reads) = (Cache::new(), Cell::new(0));
        for _ in 0..3 {
            let read = || {
                reads.set(reads.get() + 1);
                agent(Class::Bot)
            };
            assert_eq!(cache.get_or_insert("a", read), agent(Class::Bot));
        }
        assert_eq!(cache.get_or_insert("b", || agent(Class::Human)), agent(Class::Human));
        assert_eq!(reads.get(), 1);
    }

    #[test]
    fn single_texts_do_not_evict_frequent_ones() {
        let (cache, reads) = (Cache::new(), Cell::new(0));
        for text in 0..200_000 {
            cache.get_or_insert(&text.to_string(), || agent(Class::Bot));
            if text % 500 == 0 {
                let read = || {
                    reads.set(reads.get() + 1);
                    agent(Class::Human)
                };
                assert_eq!(cache.get_or_insert("a browser", read), agent(Class::Human));
            }
        }
        assert_eq!(reads.get(), 1);
        assert!(texts(&cache) <= SHARDS * GENERATION * 2, "{} texts", texts(&cache));
    }

    #[test]
    fn texts_with_the_same_hash_are_distinct() {
        let mut shard = Shard::default();
        shard.insert(7, Entry { text: "a".into(), agent: agent(Class::Human) });
        assert_eq!(shard.get(7, "b"), None);
        assert_eq!(shard.get(7, "a"), Some(agent(Class::Human)));
        shard.old = mem::take(&mut shard.young);
        assert_eq!(shard.get(7, "b"), None);
    }
}
