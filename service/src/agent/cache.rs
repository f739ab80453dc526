//! What was read before, by the text: reading anew costs a thousand times as much as looking it up.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher, RandomState};
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Agent;

/// How many locks share the texts.
const SHARDS: usize = 64;

/// How many texts a generation of one shard holds.
const GENERATION: usize = 128;

/// The agents of recent texts; at most two generations of each shard, about 16,000 texts and 6 MB.
///
/// A text that is asked for moves into the young generation; when that is full it becomes the old one, whose texts
/// are forgotten. So a flood of texts that come once pushes out nothing that comes again and again.
pub(super) struct Cache {
    /// Keyed anew in each process: nobody can choose texts that fall into one place.
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

    /// Returns what was read of a text, reading it if it is not known.
    pub(super) fn get_or_insert(&self, text: &str, read: impl FnOnce() -> Agent) -> Agent {
        let hash = self.hasher.hash_one(text);
        if let Some(agent) = self.shard(hash).get(hash, text) {
            return agent;
        }
        // Without the lock: others in this shard need not wait. Two that read the same text agree.
        let agent = read();
        self.shard(hash).insert(hash, Entry { text: text.into(), agent: agent.clone() });
        agent
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // The maps take the low bits for their places, so the shard is told by the high ones.
        let shard = (hash >> 48) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn get(&mut self, hash: u64, text: &str) -> Option<Agent> {
        // Two texts of one hash share a place; the text tells whose agent stands there.
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

/// Passes on the hash that is the key.
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

    use super::{super::Class, *};

    fn agent(class: Class) -> Agent {
        Agent { class, device_type: "other", browser: None, os: None }
    }

    fn texts(cache: &Cache) -> usize {
        let count = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap();
            shard.young.len() + shard.old.len()
        };
        cache.shards.iter().map(count).sum()
    }

    #[test]
    fn a_text_is_read_once() {
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
    fn a_flood_of_texts_is_forgotten_and_what_comes_again_and_again_is_not() {
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
    fn two_texts_of_one_hash_are_not_taken_for_each_other() {
        let mut shard = Shard::default();
        shard.insert(7, Entry { text: "a".into(), agent: agent(Class::Human) });
        assert_eq!(shard.get(7, "b"), None);
        assert_eq!(shard.get(7, "a"), Some(agent(Class::Human)));
        shard.old = mem::take(&mut shard.young);
        assert_eq!(shard.get(7, "b"), None);
    }
}
