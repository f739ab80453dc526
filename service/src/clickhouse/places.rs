//! What a process knows of the replicas: which one of each shard it uses, and where each stands in its cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clickhouse::Row;
use parking_lot::Mutex;
use serde::Deserialize;

use super::quoted;

/// From this number of replicas on, an insert is confirmed by most of them: then the loss of one loses nothing, and the
/// others go on at once. Two could not store anything while one is away.
const REPLICAS_OF_QUORUM: u64 = 3;

/// Where a replica stands in its cluster, as it says itself.
#[derive(Debug, Clone, Row, Deserialize)]
pub(super) struct Place {
    /// Its macro `shard`.
    shard: u16,
    /// The host and port at which the other servers reach it.
    address: String,
    /// The number of shards of the cluster.
    shards: u64,
    /// The number of replicas of the shard that has the fewest.
    replicas: u64,
    /// The number of its tables that it cannot write to.
    read_only: u64,
}

impl Place {
    /// Returns the query for it; `cluster` is the name of the cluster in the servers' configuration.
    pub(super) fn asked_for(cluster: &str) -> String {
        let cluster = quoted(cluster);
        format!(
            "SELECT toUInt16OrZero(getMacro('shard')) AS shard, \
                    assumeNotNull((SELECT anyIf(concat(host_name, ':', toString(port)), is_local) \
                                   FROM system.clusters WHERE cluster = {cluster})) AS address, \
                    assumeNotNull((SELECT uniqExact(shard_num) FROM system.clusters \
                                   WHERE cluster = {cluster})) AS shards, \
                    assumeNotNull((SELECT min(replicas) FROM (SELECT uniqExact(replica_num) AS replicas \
                                   FROM system.clusters WHERE cluster = {cluster} GROUP BY shard_num))) AS replicas, \
                    assumeNotNull((SELECT count() FROM system.replicas \
                                   WHERE database = currentDatabase() AND is_readonly)) AS read_only"
        )
    }
}

/// Shared by all clients of one configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// The replicas in the order in which they are used: of each shard, the first one.
    order: Arc<Mutex<Vec<usize>>>,
    places: Arc<Mutex<BTreeMap<usize, Place>>>,
}

impl Known {
    /// Uses the replicas in the order of their numbers, unless there is an order.
    pub(super) fn begin_with(&self, replicas: usize) {
        let mut order = self.order.lock();
        if order.is_empty() {
            *order = (0..replicas).collect();
        }
    }

    /// Returns the same places with the present order, which others do not change.
    pub(super) fn pinned(&self) -> Self {
        Self { order: Arc::new(Mutex::new(self.order.lock().clone())), places: Arc::clone(&self.places) }
    }

    /// Returns the replicas of a shard, or all, in their order.
    pub(super) fn order(&self, shard: Option<u16>) -> Vec<usize> {
        let places = self.places.lock();
        let is_of_it = |replica: &usize| {
            shard.is_none_or(|shard| places.get(replica).is_some_and(|place| place.shard == shard))
        };
        self.order.lock().iter().copied().filter(is_of_it).collect()
    }

    /// Makes a replica the first one of all, or of `shard`, whose others it must not move; returns whether another one
    /// was.
    pub(super) fn choose(&self, replica: usize, shard: Option<u16>) -> bool {
        let Some(present) = self.order(shard).first().copied().filter(|present| *present != replica) else {
            return false;
        };
        let mut order = self.order.lock();
        order.retain(|other| *other != replica);
        let place = order.iter().position(|other| *other == present).unwrap_or_default();
        order.insert(place, replica);
        true
    }

    /// Remembers what a replica says; returns what is wrong with it.
    pub(super) fn learn(&self, replica: usize, place: Place) -> Result<(), &'static str> {
        if place.shards == 0 {
            return Err("it knows no cluster of the name HOPLINE_CLICKHOUSE_CLUSTER");
        }
        if place.shards > 1 && place.address.is_empty() {
            return Err("it does not find itself among the servers of its cluster");
        }
        let (shard, is_read_only) = (place.shard, place.read_only > 0);
        // A process keeps what it knew first: the rows of a shard are nowhere else.
        if self.places.lock().entry(replica).or_insert(place).shard != shard {
            return Err("it is of another shard than before");
        }
        if is_read_only {
            return Err("its tables are read-only, it does not reach ZooKeeper or Keeper");
        }
        Ok(())
    }

    /// Returns the numbers of all shards, ascending, once a replica of each has said which one it is of.
    pub(super) fn shards(&self) -> Option<Vec<u16>> {
        let places = self.places.lock();
        let count = places.values().map(|place| place.shards).max()?;
        let shards: BTreeSet<u16> = places.values().map(|place| place.shard).collect();
        (shards.len() as u64 >= count).then(|| shards.into_iter().collect())
    }

    /// Returns whether most replicas confirm an insert.
    pub(super) fn confirm_inserts(&self) -> bool {
        self.places.lock().values().any(|place| place.replicas >= REPLICAS_OF_QUORUM)
    }

    /// Returns the address, for the other servers, of the replica that is used of a shard.
    pub(super) fn address(&self, shard: u16) -> Option<String> {
        let used = *self.order(Some(shard)).first()?;
        let address = self.places.lock().get(&used)?.address.clone();
        Some(address).filter(|address| !address.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(shard: u16) -> Place {
        Place { shard, address: format!("host-{shard}:9000"), shards: 2, replicas: 2, read_only: 0 }
    }

    #[test]
    fn each_shard_uses_the_replica_that_was_chosen_last() {
        let known = Known::default();
        known.begin_with(4);
        assert_eq!((known.shards(), known.order(Some(1))), (None, vec![]));
        for (replica, shard) in [(0, 1), (1, 1), (2, 2), (3, 2)] {
            known.learn(replica, place(shard)).unwrap();
        }
        assert_eq!(known.shards(), Some(vec![1, 2]));
        assert!(!known.choose(2, Some(2)), "it is already in use");
        assert!(known.choose(3, Some(2)));
        let pinned = known.pinned();
        assert!(known.choose(1, Some(1)));
        assert_eq!((known.order(Some(1)), known.order(Some(2))), (vec![1, 0], vec![3, 2]));
        assert_eq!(pinned.order(Some(1)), [0, 1]);
        // A shard's replica changes without changing the replica that is used for any shard.
        assert!(known.choose(2, Some(2)));
        assert_eq!(known.order(None), [1, 0, 2, 3]);
        assert!(known.choose(2, None));
        assert_eq!(known.order(None), [2, 1, 0, 3]);
        assert_eq!(known.address(2).as_deref(), Some("host-2:9000"));
    }

    #[test]
    fn a_shard_that_has_not_answered_is_missing() {
        let known = Known::default();
        known.begin_with(2);
        known.learn(0, place(1)).unwrap();
        assert_eq!(known.shards(), None);
        known.learn(1, Place { shards: 0, ..place(2) }).unwrap_err();
        assert_eq!(known.shards(), None, "its configuration has another cluster");
        known.learn(1, Place { read_only: 3, ..place(2) }).unwrap_err();
        assert_eq!(known.shards(), Some(vec![1, 2]));
    }
}
