//! Timers of this process's retries, so that none waits for the next poll of the database.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use schemas::id::{EndpointId, WorkspaceId};
use tokio::time::{Instant, sleep_until};

/// Maximum timers in memory; retries beyond it are found by polling.
const MAX: usize = 100_000;

/// Endpoints to wake, by time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, EndpointId, WorkspaceId)>>,
}

impl Timers {
    /// Adds a timer for an endpoint's retry.
    pub(crate) fn add(&mut self, at: Instant, endpoint_id: EndpointId, workspace_id: WorkspaceId) {
        if self.heap.len() < MAX {
            self.heap.push(Reverse((at, endpoint_id, workspace_id)));
        }
    }

    /// Waits until an endpoint has a due retry; forever when there is no timer.
    pub(crate) async fn due(&self) {
        match self.heap.peek() {
            Some(Reverse((at, _, _))) => sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }

    /// Removes and returns the next endpoint with a due retry.
    pub(crate) fn pop(&mut self) -> Option<(EndpointId, WorkspaceId)> {
        let Reverse((at, _, _)) = self.heap.peek()?;
        if *at > Instant::now() {
            return None;
        }
        self.heap.pop().map(|Reverse((_, endpoint_id, workspace_id))| (endpoint_id, workspace_id))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn endpoints_wake_in_the_order_of_their_times() {
        let workspace = WorkspaceId::from_uuid(Uuid::nil());
        let endpoint = |number| EndpointId::from_uuid(Uuid::from_u128(number));
        let start = Instant::now();
        let mut timers = Timers::default();
        for (seconds, number) in [(20, 2), (10, 1)] {
            timers.add(start + Duration::from_secs(seconds), endpoint(number), workspace);
        }
        assert_eq!(timers.pop(), None);
        for (seconds, number) in [(10, 1), (20, 2)] {
            timers.due().await;
            assert_eq!(start.elapsed().as_secs(), seconds);
            assert_eq!(timers.pop(), Some((endpoint(number), workspace)));
            assert_eq!(timers.pop(), None);
        }
    }
}
