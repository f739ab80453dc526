//! Limits of what is open at the same time, for each owner and for all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts what each owner has open.
#[derive(Debug, Clone)]
pub struct Slots<K> {
    open: Arc<Mutex<Open<K>>>,
    most: usize,
}

#[derive(Debug)]
struct Open<K> {
    by_owner: HashMap<K, usize>,
    total: usize,
}

/// A slot of an owner; dropping it frees it.
#[derive(Debug)]
pub struct Slot<K: Eq + Hash> {
    slots: Slots<K>,
    owner: K,
}

/// Why there is no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The owner has as many as it may have.
    Owner,
    /// All owners together have as many as they may have.
    All,
}

impl<K: Eq + Hash + Copy> Slots<K> {
    /// Lets all owners together have `most` slots.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { open: Arc::new(Mutex::new(Open { by_owner: HashMap::new(), total: 0 })), most }
    }

    /// Limits each owner only.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Takes a slot of an owner, who may have `max`.
    ///
    /// # Errors
    /// [`Full`] when the owner, or all together, have no more.
    pub fn take(&self, owner: K, max: usize) -> Result<Slot<K>, Full> {
        let mut open = self.open.lock();
        let count = open.by_owner.get(&owner).copied().unwrap_or_default();
        if count >= max {
            return Err(Full::Owner);
        }
        if open.total >= self.most {
            return Err(Full::All);
        }
        open.by_owner.insert(owner, count + 1);
        open.total += 1;
        Ok(Slot { slots: Self { open: Arc::clone(&self.open), most: self.most }, owner })
    }

    /// Returns the number of slots that all owners have.
    #[must_use]
    pub fn total(&self) -> usize {
        self.open.lock().total
    }
}

impl<K: Eq + Hash> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock();
        open.total -= 1;
        if let Some(count) = open.by_owner.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                open.by_owner.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_and_all_together_have_limits_of_slots() {
        let slots = Slots::new(6);
        let (one, other) = (1, 2);
        let mut taken: Vec<Slot<i32>> = (0..4).map(|_| slots.take(one, 4).unwrap()).collect();
        assert_eq!(slots.take(one, 4).unwrap_err(), Full::Owner);
        taken.extend((0..2).map(|_| slots.take(other, 4).unwrap()));
        assert_eq!(slots.take(other, 4).unwrap_err(), Full::All);
        assert_eq!(slots.take(one, 4).unwrap_err(), Full::Owner);
        assert_eq!(slots.total(), 6);
        taken.remove(0);
        taken.push(slots.take(one, 4).unwrap());
        assert_eq!(slots.take(one, 4).unwrap_err(), Full::Owner);
        taken.clear();
        assert_eq!(slots.total(), 0);
        assert!(slots.open.lock().by_owner.is_empty(), "no owner is remembered");
    }
}
