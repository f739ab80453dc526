//! Permits for costly work: a limit on what one owner does at a time, a workspace for example, and all together.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

/// Grants permits.
///
/// A request first waits for a permit of its owner, then for one of all. So an owner with many requests delays
/// others by its few permits at most.
#[derive(Debug, Clone)]
pub(crate) struct Permits(Arc<State>);

#[derive(Debug)]
struct State {
    per_owner: usize,
    /// Owners with a permit or a waiting request.
    owners: Mutex<HashMap<Uuid, Arc<Semaphore>>>,
    all: Arc<Semaphore>,
}

/// A permit, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _of_all: OwnedSemaphorePermit,
    _of_owner: OwnedSemaphorePermit,
    // Dropped last: it checks whether the owner has other permits.
    _place: Place,
}

impl Permits {
    /// Lets each owner have `per_owner` permits at a time, and all together `all`.
    pub(crate) fn new(per_owner: usize, all: usize) -> Self {
        Self(Arc::new(State { per_owner, owners: Mutex::default(), all: Arc::new(Semaphore::new(all)) }))
    }

    /// Waits for a permit. `None` only if the semaphores were closed, which never happens.
    pub(crate) async fn take(&self, owner: Uuid) -> Option<Permit> {
        let place = self.place(owner);
        let of_owner = Arc::clone(place.semaphore.as_ref()?).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.0.all).acquire_owned().await.ok()?;
        Some(Permit { _of_all: of_all, _of_owner: of_owner, _place: place })
    }

    fn place(&self, owner: Uuid) -> Place {
        let mut owners = self.0.owners.lock();
        let semaphore = owners.entry(owner).or_insert_with(|| Arc::new(Semaphore::new(self.0.per_owner)));
        Place { semaphore: Some(Arc::clone(semaphore)), owner, permits: Arc::clone(&self.0) }
    }
}

/// A place in an owner's queue. The last one removes the queue.
#[derive(Debug)]
struct Place {
    semaphore: Option<Arc<Semaphore>>,
    owner: Uuid,
    permits: Arc<State>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut owners = self.permits.owners.lock();
        self.semaphore = None;
        // Nobody can join under the lock, so a count of one means that only the map holds it.
        if owners.get(&self.owner).is_some_and(|semaphore| Arc::strong_count(semaphore) == 1) {
            owners.remove(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn owner(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn at_once(permits: &Permits, number: u128) -> Option<Permit> {
        permits.take(owner(number)).now_or_never().flatten()
    }

    #[test]
    fn an_owner_has_a_limit_of_permits() {
        let permits = Permits::new(2, 5);
        let first = at_once(&permits, 1).unwrap();
        let _second = at_once(&permits, 1).unwrap();
        assert!(at_once(&permits, 1).is_none());
        let _other = at_once(&permits, 2).unwrap();
        drop(first);
        assert!(at_once(&permits, 1).is_some());
    }

    #[tokio::test]
    async fn a_busy_owner_delays_others_by_its_permits_only() {
        let permits = Permits::new(2, 2);
        let greedy: Vec<Permit> =
            [at_once(&permits, 1), at_once(&permits, 1)].into_iter().flatten().collect();
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(permits.take(owner(1)))).collect();
        for wait in &mut waiting {
            assert!(wait.now_or_never().is_none());
        }
        let mut modest = Box::pin(permits.take(owner(2)));
        assert!((&mut modest).now_or_never().is_none());
        drop(greedy);
        assert!(modest.now_or_never().flatten().is_some(), "it goes before the hundred");
    }

    #[test]
    fn an_idle_owner_is_removed() {
        let permits = Permits::new(1, 1);
        let permit = at_once(&permits, 1).unwrap();
        // This wait is abandoned.
        assert!(at_once(&permits, 1).is_none());
        assert_eq!(permits.0.owners.lock().len(), 1);
        drop(permit);
        assert!(permits.0.owners.lock().is_empty());
    }
}
