//! Limits of what is open at the same time, for each owner.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

/// Counts what each owner has open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slots(Arc<Mutex<HashMap<Uuid, usize>>>);

/// A slot of an owner; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Slots,
    owner: Uuid,
}

impl Slots {
    /// Takes a slot of an owner; `None` when the owner has `max` already.
    pub(crate) fn take(&self, owner: Uuid, max: usize) -> Option<Slot> {
        let mut open = self.0.lock();
        let count = open.entry(owner).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Slot { slots: self.clone(), owner })
    }

    /// Returns the number of slots that all owners have.
    pub(crate) fn total(&self) -> usize {
        self.0.lock().values().sum()
    }

    /// Returns whether no owner is remembered.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl Drop for Slot {
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
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut taken: Vec<Slot> = (0..4).map(|_| slots.take(one, 4).unwrap()).collect();
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
