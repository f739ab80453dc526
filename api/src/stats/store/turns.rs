//! Whose turn it is: how many requests of one workspace, and of all, are at ClickHouse at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

/// Gives out turns.
///
/// A workspace first waits among its own requests and then, with the few that it may have at a time, among those of
/// the others. So a workspace that asks for ever so much delays the others by its few at most.
#[derive(Debug, Clone)]
pub(super) struct Turns(Arc<State>);

#[derive(Debug)]
struct State {
    per_workspace: usize,
    /// Those that have a turn or wait for one.
    workspaces: Mutex<HashMap<Uuid, Arc<Semaphore>>>,
    all: Arc<Semaphore>,
}

/// A turn; the next one comes when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _of_all: OwnedSemaphorePermit,
    _of_workspace: OwnedSemaphorePermit,
    // Dropped last: it looks whether the workspace has any left.
    _place: Place,
}

impl Turns {
    /// Lets each workspace have so many turns at a time, and all together so many.
    pub(super) fn new(per_workspace: usize, all: usize) -> Self {
        Self(Arc::new(State {
            per_workspace,
            workspaces: Mutex::default(),
            all: Arc::new(Semaphore::new(all)),
        }))
    }

    /// Waits for a turn. `None` only when turns are no longer given, which is never.
    pub(super) async fn take(&self, workspace: Uuid) -> Option<Turn> {
        let place = self.place(workspace);
        let of_workspace = Arc::clone(place.semaphore.as_ref()?).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.0.all).acquire_owned().await.ok()?;
        Some(Turn { _of_all: of_all, _of_workspace: of_workspace, _place: place })
    }

    fn place(&self, workspace: Uuid) -> Place {
        let mut workspaces = self.0.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let semaphore =
            workspaces.entry(workspace).or_insert_with(|| Arc::new(Semaphore::new(self.0.per_workspace)));
        Place { semaphore: Some(Arc::clone(semaphore)), workspace, turns: Arc::clone(&self.0) }
    }
}

/// A place in a workspace's queue. The last one that leaves takes the queue away.
#[derive(Debug)]
struct Place {
    semaphore: Option<Arc<Semaphore>>,
    workspace: Uuid,
    turns: Arc<State>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut workspaces = self.turns.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        self.semaphore = None;
        // Under the lock nobody joins: what holds it now is the map alone, or others in the queue too.
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

    fn at_once(turns: &Turns, number: u128) -> Option<Turn> {
        turns.take(workspace(number)).now_or_never().flatten()
    }

    #[test]
    fn a_workspace_has_its_few_turns_and_leaves_the_rest_to_others() {
        let turns = Turns::new(2, 5);
        let first = at_once(&turns, 1).unwrap();
        let _second = at_once(&turns, 1).unwrap();
        assert!(at_once(&turns, 1).is_none());
        let _other = at_once(&turns, 2).unwrap();
        drop(first);
        assert!(at_once(&turns, 1).is_some());
    }

    #[tokio::test]
    async fn one_that_asks_for_much_delays_the_others_by_its_few_turns_only() {
        let turns = Turns::new(2, 2);
        let greedy: Vec<Turn> = [at_once(&turns, 1), at_once(&turns, 1)].into_iter().flatten().collect();
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(turns.take(workspace(1)))).collect();
        for wait in &mut waiting {
            assert!(wait.now_or_never().is_none());
        }
        let mut modest = Box::pin(turns.take(workspace(2)));
        assert!((&mut modest).now_or_never().is_none());
        drop(greedy);
        assert!(modest.now_or_never().flatten().is_some(), "before the hundred");
    }

    #[test]
    fn a_workspace_that_asks_nothing_is_forgotten() {
        let turns = Turns::new(1, 1);
        let turn = at_once(&turns, 1).unwrap();
        // One that gave up waiting.
        assert!(at_once(&turns, 1).is_none());
        assert_eq!(turns.0.workspaces.lock().unwrap().len(), 1);
        drop(turn);
        assert!(turns.0.workspaces.lock().unwrap().is_empty());
    }
}
