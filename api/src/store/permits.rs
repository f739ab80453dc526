//! Permits for costly statements: a limit on concurrent requests of one workspace, and of all.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

/// Grants permits.
///
/// A request first waits for a permit of its workspace, then for one of all. So a workspace with many requests delays
/// others by its few permits at most.
#[derive(Debug, Clone)]
pub(crate) struct Permits(Arc<State>);

#[derive(Debug)]
struct State {
    per_workspace: usize,
    /// Workspaces with a permit or a waiting request.
    workspaces: Mutex<HashMap<Uuid, Arc<Semaphore>>>,
    all: Arc<Semaphore>,
}

/// A permit, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _of_all: OwnedSemaphorePermit,
    _of_workspace: OwnedSemaphorePermit,
    // Dropped last: it checks whether the workspace has other permits.
    _place: Place,
}

impl Permits {
    /// Lets each workspace have `per_workspace` permits at a time, and all together `all`.
    pub(crate) fn new(per_workspace: usize, all: usize) -> Self {
        Self(Arc::new(State {
            per_workspace,
            workspaces: Mutex::default(),
            all: Arc::new(Semaphore::new(all)),
        }))
    }

    /// Waits for a permit. `None` only if the semaphores were closed, which never happens.
    pub(crate) async fn take(&self, workspace: Uuid) -> Option<Permit> {
        let place = self.place(workspace);
        let of_workspace = Arc::clone(place.semaphore.as_ref()?).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.0.all).acquire_owned().await.ok()?;
        Some(Permit { _of_all: of_all, _of_workspace: of_workspace, _place: place })
    }

    fn place(&self, workspace: Uuid) -> Place {
        let mut workspaces = self.0.workspaces.lock();
        let semaphore =
            workspaces.entry(workspace).or_insert_with(|| Arc::new(Semaphore::new(self.0.per_workspace)));
        Place { semaphore: Some(Arc::clone(semaphore)), workspace, permits: Arc::clone(&self.0) }
    }
}

/// A place in a workspace's queue. The last one removes the queue.
#[derive(Debug)]
struct Place {
    semaphore: Option<Arc<Semaphore>>,
    workspace: Uuid,
    permits: Arc<State>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut workspaces = self.permits.workspaces.lock();
        self.semaphore = None;
        // Nobody can join under the lock, so a count of one means that only the map holds it.
        if workspaces.get(&self.workspace).is_some_and(|semaphore| Arc::strong_count(semaphore) == 1) {
            workspaces.remove(&self.workspace);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn workspace(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn at_once(permits: &Permits, number: u128) -> Option<Permit> {
        permits.take(workspace(number)).now_or_never().flatten()
    }

    #[test]
    fn a_workspace_has_a_limit_of_permits() {
        let permits = Permits::new(2, 5);
        let first = at_once(&permits, 1).unwrap();
        let _second = at_once(&permits, 1).unwrap();
        assert!(at_once(&permits, 1).is_none());
        let _other = at_once(&permits, 2).unwrap();
        drop(first);
        assert!(at_once(&permits, 1).is_some());
    }

    #[tokio::test]
    async fn a_busy_workspace_delays_others_by_its_permits_only() {
        let permits = Permits::new(2, 2);
        let greedy: Vec<Permit> =
            [at_once(&permits, 1), at_once(&permits, 1)].into_iter().flatten().collect();
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(permits.take(workspace(1)))).collect();
        for wait in &mut waiting {
            assert!(wait.now_or_never().is_none());
        }
        let mut modest = Box::pin(permits.take(workspace(2)));
        assert!((&mut modest).now_or_never().is_none());
        drop(greedy);
        assert!(modest.now_or_never().flatten().is_some(), "it goes before the hundred");
    }

    #[test]
    fn an_idle_workspace_is_removed() {
        let permits = Permits::new(1, 1);
        let permit = at_once(&permits, 1).unwrap();
        // This wait is abandoned.
        assert!(at_once(&permits, 1).is_none());
        assert_eq!(permits.0.workspaces.lock().len(), 1);
        drop(permit);
        assert!(permits.0.workspaces.lock().is_empty());
    }
}
