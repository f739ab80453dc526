//! Timers of this process's retries, so that none waits for the next poll of the database.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use schemas::id::{AccountId, EndpointId};
use tokio::time::{Instant, sleep_until};

/// Maximum timers in memory; retries beyond it are found by polling.
const MAX: usize = 100_000;

/// Endpoints to wake, by time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, EndpointId, AccountId)>>,
}

impl Timers {
    /// Adds a timer for an endpoint's retry.
    pub(crate) fn add(&mut self, at: Instant, endpoint_id: EndpointId, account_id: AccountId) {
        if self.heap.len() < MAX {
            self.heap.push(Reverse((at, endpoint_id, account_id)));
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
    pub(crate) fn pop(&mut self) -> Option<(EndpointId, AccountId)> {
        let Reverse((at, _, _)) = self.heap.peek()?;
        if *at > Instant::now() {
            return None;
        }
        self.heap.pop().map(|Reverse((_, endpoint_id, account_id))| (endpoint_id, account_id))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn endpoints_wake_in_the_order_of_their_times() {
        let account = AccountId::from_uuid(Uuid::nil());
        let endpoint = |number| EndpointId::from_uuid(Uuid::from_u128(number));
        let start = Instant::now();
        let mut timers = Timers::default();
        for (seconds, number) in [(20, 2), (10, 1)] {
            timers.add(start + Duration::from_secs(seconds), endpoint(number), account);
        }
        assert_eq!(timers.pop(), None);
        for (seconds, number) in [(10, 1), (20, 2)] {
            timers.due().await;
            assert_eq!(start.elapsed().as_secs(), seconds);
            assert_eq!(timers.pop(), Some((endpoint(number), account)));
            assert_eq!(timers.pop(), None);
        }
    }
}
