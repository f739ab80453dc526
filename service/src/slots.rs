//! Limits of what is open at the same time, for each owner.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts what each owner has open.
#[derive(Debug, Clone)]
pub struct Slots<K>(Arc<Mutex<HashMap<K, usize>>>);

impl<K> Default for Slots<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// A slot of an owner; dropping it frees it.
#[derive(Debug)]
pub struct Slot<K: Eq + Hash> {
    slots: Slots<K>,
    owner: K,
}

impl<K: Eq + Hash + Copy> Slots<K> {
    /// Takes a slot of an owner; `None` when the owner has `max` already.
    #[must_use]
    pub fn take(&self, owner: K, max: usize) -> Option<Slot<K>> {
        let mut open = self.0.lock();
        let count = open.entry(owner).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Slot { slots: Self(Arc::clone(&self.0)), owner })
    }

    /// Returns the number of slots that all owners have.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.lock().values().sum()
    }

    /// Returns whether no owner is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl<K: Eq + Hash> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut open = self.slots.0.lock();
        if let Some(count) = open.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_has_a_limit_of_slots() {
        let slots = Slots::default();
        let (one, other) = (1, 2);
        let mut taken: Vec<Slot<i32>> = (0..4).map(|_| slots.take(one, 4).unwrap()).collect();
        assert!(slots.take(one, 4).is_none());
        assert!(slots.take(other, 4).is_some());
        taken.pop();
        taken.push(slots.take(one, 4).unwrap());
        assert!(slots.take(one, 4).is_none());
        assert_eq!(slots.total(), 4);
        taken.clear();
        assert!(slots.is_empty());
    }
}
