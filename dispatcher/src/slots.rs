//! Who may send next: bounds per endpoint and per process, shared out in turn.
//!
//! Only as many deliveries are claimed as can be sent at once, so what a dead endpoint keeps waiting waits in
//! Postgres, not here, and takes no more than its own slots.

use std::collections::{HashMap, HashSet, VecDeque};

use schemas::id::EndpointId;

/// Endpoints that may have deliveries due, and the slots in use.
#[derive(Debug)]
pub(crate) struct Slots {
    per_endpoint: usize,
    per_process: usize,
    in_flight: HashMap<EndpointId, usize>,
    total: usize,
    /// In the order of their turns.
    waiting: VecDeque<EndpointId>,
    queued: HashSet<EndpointId>,
}

/// The slots that an endpoint gets for its next claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Whose deliveries to claim.
    pub(crate) endpoint_id: EndpointId,
    /// How many at most.
    pub(crate) slots: usize,
}

impl Slots {
    /// Starts with every slot free.
    #[must_use]
    pub(crate) fn new(per_endpoint: usize, per_process: usize) -> Self {
        Self {
            per_endpoint,
            per_process,
            in_flight: HashMap::new(),
            total: 0,
            waiting: VecDeque::new(),
            queued: HashSet::new(),
        }
    }

    /// Returns how many slots are in use.
    #[must_use]
    pub(crate) fn in_flight(&self) -> usize {
        self.total
    }

    /// Notes that an endpoint may have deliveries due; it gets its turn after those that wait already.
    pub(crate) fn wake(&mut self, endpoint_id: EndpointId) {
        if self.queued.insert(endpoint_id) {
            self.waiting.push_back(endpoint_id);
        }
    }

    /// Takes slots for the waiting endpoints that may use some. Free slots are shared out evenly; when there are
    /// fewer than endpoints, those that waited longest get one each.
    pub(crate) fn grant(&mut self) -> Vec<Grant> {
        let free = self.per_process.saturating_sub(self.total);
        let mut chosen = Vec::new();
        for _ in 0..self.waiting.len() {
            let Some(endpoint_id) = self.waiting.pop_front() else { break };
            let room =
                self.per_endpoint.saturating_sub(self.in_flight.get(&endpoint_id).copied().unwrap_or(0));
            if room > 0 && chosen.len() < free {
                self.queued.remove(&endpoint_id);
                chosen.push(Grant { endpoint_id, slots: room });
            } else {
                self.waiting.push_back(endpoint_id);
            }
        }
        let share = free.checked_div(chosen.len()).unwrap_or(0);
        for grant in &mut chosen {
            grant.slots = grant.slots.min(share);
            *self.in_flight.entry(grant.endpoint_id).or_default() += grant.slots;
            self.total += grant.slots;
        }
        chosen
    }

    /// Settles a grant after `claimed` deliveries came of it: gives unused slots back, and lets the endpoint wait
    /// for another turn when it used them all, for then it may have more.
    pub(crate) fn claimed(&mut self, grant: Grant, claimed: usize) {
        self.release(grant.endpoint_id, grant.slots.saturating_sub(claimed));
        if claimed >= grant.slots {
            self.wake(grant.endpoint_id);
        }
    }

    /// Frees slots of an endpoint.
    pub(crate) fn release(&mut self, endpoint_id: EndpointId, slots: usize) {
        self.total = self.total.saturating_sub(slots);
        if let Some(used) = self.in_flight.get_mut(&endpoint_id) {
            *used = used.saturating_sub(slots);
            if *used == 0 {
                self.in_flight.remove(&endpoint_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn endpoint(number: u128) -> EndpointId {
        EndpointId::from_uuid(Uuid::from_u128(number))
    }

    fn granted(slots: &mut Slots) -> Vec<(u128, usize)> {
        slots.grant().iter().map(|grant| (grant.endpoint_id.uuid().as_u128(), grant.slots)).collect()
    }

    #[test]
    fn an_endpoint_never_gets_more_than_its_bound() {
        let mut slots = Slots::new(4, 100);
        slots.wake(endpoint(1));
        assert_eq!(granted(&mut slots), [(1, 4)]);
        slots.wake(endpoint(1));
        assert_eq!(granted(&mut slots), []);
        slots.release(endpoint(1), 1);
        assert_eq!(granted(&mut slots), [(1, 1)]);
    }

    #[test]
    fn a_full_endpoint_does_not_keep_another_waiting() {
        let mut slots = Slots::new(4, 100);
        slots.wake(endpoint(1));
        let full = slots.grant()[0];
        slots.claimed(full, 4);
        slots.wake(endpoint(2));
        assert_eq!(granted(&mut slots), [(2, 4)]);
    }

    #[test]
    fn too_few_slots_are_shared_out_in_turn() {
        let mut slots = Slots::new(4, 2);
        (1..=4).for_each(|number| slots.wake(endpoint(number)));
        assert_eq!(granted(&mut slots), [(1, 1), (2, 1)]);
        slots.claimed(Grant { endpoint_id: endpoint(1), slots: 1 }, 1);
        slots.claimed(Grant { endpoint_id: endpoint(2), slots: 1 }, 1);
        slots.release(endpoint(1), 1);
        slots.release(endpoint(2), 1);
        assert_eq!(granted(&mut slots), [(3, 1), (4, 1)]);
    }

    #[test]
    fn an_endpoint_with_nothing_due_leaves_the_queue() {
        let mut slots = Slots::new(4, 100);
        slots.wake(endpoint(1));
        let grant = slots.grant()[0];
        slots.claimed(grant, 1);
        assert_eq!(slots.in_flight(), 1);
        assert_eq!(granted(&mut slots), []);
    }

    proptest! {
        #[test]
        fn no_bound_is_ever_passed_and_no_slot_lost(steps in prop::collection::vec((0..8_u128, 0..6_usize), 1..200)) {
            let mut slots = Slots::new(3, 7);
            let mut held: HashMap<EndpointId, usize> = HashMap::new();
            for (number, due) in steps {
                slots.wake(endpoint(number));
                for grant in slots.grant() {
                    let claimed = due.min(grant.slots);
                    slots.claimed(grant, claimed);
                    *held.entry(grant.endpoint_id).or_default() += claimed;
                }
                prop_assert!(held.values().all(|count| *count <= 3));
                prop_assert_eq!(held.values().sum::<usize>(), slots.in_flight());
                prop_assert!(slots.in_flight() <= 7);
                if let Some(count) = held.remove(&endpoint((number + 3) % 8)) {
                    slots.release(endpoint((number + 3) % 8), count);
                }
            }
        }
    }
}
