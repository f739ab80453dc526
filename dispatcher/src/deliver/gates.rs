//! Limits the requests in flight to one endpoint, to the endpoints of one account, and in total.
//!
//! More deliveries may be claimed, so that a fast endpoint need not wait for the database between two requests.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use schemas::id::{AccountId, EndpointId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A map with more entries than this drops unused ones.
const MAX_ENTRIES: usize = 10_000;

/// All gates of this process.
#[derive(Debug)]
pub(crate) struct Gates {
    per_endpoint: usize,
    per_account: usize,
    endpoints: HashMap<EndpointId, Weak<Semaphore>>,
    accounts: HashMap<AccountId, Weak<Semaphore>>,
    process: Arc<Semaphore>,
}

/// The gates that a request to one endpoint passes, always in this order.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    endpoint: Arc<Semaphore>,
    account: Arc<Semaphore>,
    process: Arc<Semaphore>,
}

/// Permission to send one request; dropping it frees the gates.
#[derive(Debug)]
pub(crate) struct Pass {
    _permits: [OwnedSemaphorePermit; 3],
}

impl Gates {
    /// Creates gates with these limits.
    #[must_use]
    pub(crate) fn new(per_endpoint: usize, per_account: usize, per_process: usize) -> Self {
        Self {
            per_endpoint,
            per_account,
            endpoints: HashMap::new(),
            accounts: HashMap::new(),
            process: Arc::new(Semaphore::new(per_process)),
        }
    }

    /// Returns the gates to an endpoint.
    pub(crate) fn to(&mut self, endpoint_id: EndpointId, account_id: AccountId) -> Gate {
        Gate {
            endpoint: shared(&mut self.endpoints, endpoint_id, self.per_endpoint),
            account: shared(&mut self.accounts, account_id, self.per_account),
            process: Arc::clone(&self.process),
        }
    }
}

fn shared<K: Eq + Hash>(map: &mut HashMap<K, Weak<Semaphore>>, key: K, permits: usize) -> Arc<Semaphore> {
    if let Some(semaphore) = map.get(&key).and_then(Weak::upgrade) {
        return semaphore;
    }
    if map.len() >= MAX_ENTRIES {
        map.retain(|_, semaphore| semaphore.strong_count() > 0);
    }
    let semaphore = Arc::new(Semaphore::new(permits));
    map.insert(key, Arc::downgrade(&semaphore));
    semaphore
}

impl Gate {
    /// Waits until a request may be sent; `None` when the process ends.
    pub(crate) async fn pass(self) -> Option<Pass> {
        let endpoint = self.endpoint.acquire_owned().await.ok()?;
        let account = self.account.acquire_owned().await.ok()?;
        let process = self.process.acquire_owned().await.ok()?;
        Some(Pass { _permits: [endpoint, account, process] })
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn gates_limit_requests_per_endpoint_account_and_process() {
        let mut gates = Gates::new(1, 2, 3);
        let mut to = |endpoint: u128, account: u128| {
            let gate = gates.to(
                EndpointId::from_uuid(Uuid::from_u128(endpoint)),
                AccountId::from_uuid(Uuid::from_u128(account)),
            );
            tokio::spawn(gate.pass())
        };
        let (one, two) = (to(1, 1), to(2, 1));
        let one = one.await.unwrap().unwrap();
        let _two = two.await.unwrap().unwrap();
        let (same, third, other) = (to(1, 1), to(3, 1), to(4, 2));
        let _other = other.await.unwrap().unwrap();
        let full = to(5, 2);
        for _ in 0..10 {
            yield_now().await;
        }
        assert!(!same.is_finished() && !third.is_finished() && !full.is_finished());
        drop(one);
        // The endpoint and the account are free; each admits requests in order of arrival.
        let freed = tokio::select! {
            pass = third => pass,
            pass = full => pass,
            pass = same => pass,
        };
        assert!(freed.unwrap().is_some());
    }
}
