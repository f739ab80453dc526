//! Finds the clicks of a batch that were counted before.
//!
//! Only a click with `again` can repeat a stored one, so other clicks need no lookup. One exception: the copy with
//! `again` may arrive before the first copy, so its id is recent_ids for an hour.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use crate::clickhouse::SoughtClick;
use crate::pipeline::batch::{Batch, BatchRow};
use crate::pipeline::deleted_links::DeletedLinks;

/// How long an id is recent_ids, by the broker's clock. Longer than an edge keeps a record in flight.
pub const RECENT_PERIOD: TimeDelta = TimeDelta::hours(1);

/// Maximum ids recent_ids per partition, about 15 MB; the oldest are forgotten first.
pub const MAX_RECENT_IDS: usize = 100_000;

/// The ids of the possible repeats that were stored within the last hour.
#[derive(Debug, Default)]
pub struct RecentIds {
    ids: HashSet<Arc<str>>,
    oldest_first: VecDeque<(DateTime<Utc>, Arc<str>)>,
}

impl RecentIds {
    /// Remembers an id, and forgets ids that are too old or too many.
    pub fn admit(&mut self, click_id: &str, broker_ts: DateTime<Utc>) {
        let id: Arc<str> = click_id.into();
        if !self.ids.insert(Arc::clone(&id)) {
            return;
        }
        self.oldest_first.push_back((broker_ts, id));
        while let Some((admitted, id)) = self.oldest_first.front() {
            if *admitted + RECENT_PERIOD >= broker_ts && self.oldest_first.len() <= MAX_RECENT_IDS {
                break;
            }
            self.ids.remove(id);
            self.oldest_first.pop_front();
        }
    }

    fn contain(&self, click_id: &str) -> bool {
        self.ids.contains(click_id)
    }
}

/// Returns the possible repeats that must be looked up among the stored clicks.
pub fn to_look_up<'a>(batch: &'a Batch, recent_ids: &RecentIds) -> Vec<SoughtClick<'a>> {
    batch
        .rows()
        .filter_map(BatchRow::possible_repeat)
        .filter(|possible| !recent_ids.contain(possible.click_id))
        .collect()
}

/// Returns the indexes of the repeats, ascending; `stored` has the ids that the lookup found.
pub fn find(batch: &Batch, recent_ids: &RecentIds, stored: &HashSet<String>) -> Vec<usize> {
    if !batch.has_possible_repeats() && recent_ids.ids.is_empty() {
        return Vec::new();
    }
    let possible_repeats: HashMap<&str, usize> = batch
        .rows()
        .enumerate()
        .filter(|(_, row)| row.is_possible_repeat())
        // `collect` keeps the last entry of a key, so after reversing it keeps the first row.
        .rev()
        .map(|(index, row)| (row.click_id(), index))
        .collect();
    // The ids that are stored from this batch, of those that have a possible repeat in it. Other ids are not compared.
    let mut admitted: HashSet<&str> = HashSet::new();
    let mut repeats = Vec::new();
    for (index, row) in batch.rows().enumerate() {
        let id = row.click_id();
        let is_repeat = recent_ids.contain(id)
            || if row.is_possible_repeat() {
                stored.contains(id) || admitted.contains(id)
            } else {
                possible_repeats.get(id).is_some_and(|first| *first < index)
            };
        if is_repeat {
            repeats.push(index);
        } else if possible_repeats.contains_key(id) {
            admitted.insert(id);
        }
    }
    repeats
}

/// The rows of a batch that are not stored.
pub(crate) struct Dropped {
    /// Their indexes, ascending.
    pub(crate) indexes: Vec<usize>,
    /// How many are clicks of deleted links; the others are repeats.
    pub(crate) deleted: usize,
}

impl Dropped {
    /// Combines the indexes of the repeats, ascending, with the clicks of deleted links.
    pub(crate) fn new(batch: &Batch, repeats: &[usize], deleted_links: &DeletedLinks) -> Self {
        let mut dropped = Self { indexes: Vec::new(), deleted: 0 };
        let mut repeats = repeats.iter().peekable();
        for (index, row) in batch.rows().enumerate() {
            let is_repeat = repeats.next_if(|next| **next == index).is_some();
            let is_deleted = deleted_links.contain(row.link_id());
            dropped.deleted += usize::from(is_deleted);
            if is_repeat || is_deleted {
                dropped.indexes.push(index);
            }
        }
        dropped
    }

    /// Returns the possible repeats that are stored. The first copy of one may still arrive.
    pub(crate) fn admitted<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = BatchRow<'a>> {
        self.kept(batch).filter(|row| row.is_possible_repeat())
    }

    /// Returns the rows that are stored.
    pub(crate) fn kept<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = BatchRow<'a>> {
        let mut dropped = self.indexes.iter().peekable();
        batch
            .rows()
            .enumerate()
            .filter(move |(index, _)| dropped.next_if(|next| *next == index).is_none())
            .map(|(_, row)| row)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::batch::{Batcher, Limits, tests::row};

    fn now() -> DateTime<Utc> {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    /// Returns rows with these ids; a leading `+` marks a possible repeat.
    fn rows(ids: &[impl AsRef<str>]) -> Batch {
        let mut batcher = Batcher::new(Limits::default());
        for (koff, id) in ids.iter().enumerate() {
            let id = id.as_ref();
            batcher.push(&row(koff as u64, id.trim_start_matches('+'), id.starts_with('+'), now()));
        }
        batcher.cut().unwrap()
    }

    fn stored(ids: &[&str]) -> HashSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn clicks_without_again_are_not_compared() {
        assert_eq!(find(&rows(&["a", "a"]), &RecentIds::default(), &stored(&[])), [0; 0]);
        assert!(to_look_up(&rows(&["a", "a"]), &RecentIds::default()).is_empty());
    }

    #[test]
    fn a_repeat_within_a_batch_is_found_in_either_order() {
        let none = RecentIds::default();
        assert_eq!(find(&rows(&["a", "+a"]), &none, &stored(&[])), [1]);
        assert_eq!(find(&rows(&["+a", "a"]), &none, &stored(&[])), [1]);
        assert_eq!(find(&rows(&["+a", "+a", "b"]), &none, &stored(&[])), [1]);
    }

    #[test]
    fn a_possible_repeat_is_dropped_if_it_is_stored() {
        assert_eq!(find(&rows(&["+a", "+b"]), &RecentIds::default(), &stored(&["a"])), [0]);
    }

    #[test]
    fn a_late_first_copy_is_dropped_within_the_hour() {
        let mut recent_ids = RecentIds::default();
        recent_ids.admit("a", now());
        assert_eq!(find(&rows(&["a", "b"]), &recent_ids, &stored(&[])), [0]);
        assert_eq!(find(&rows(&["+a"]), &recent_ids, &stored(&[])), [0]);
        assert!(to_look_up(&rows(&["+a"]), &recent_ids).is_empty(), "a recent id is not looked up");
        recent_ids.admit("c", now() + RECENT_PERIOD);
        assert!(recent_ids.contain("a"));
        recent_ids.admit("d", now() + RECENT_PERIOD + TimeDelta::milliseconds(1));
        assert!(!recent_ids.contain("a"));
    }

    #[test]
    fn recent_ids_are_limited() {
        let mut recent_ids = RecentIds::default();
        for id in 0..MAX_RECENT_IDS + 5 {
            recent_ids.admit(&id.to_string(), now());
        }
        assert_eq!(recent_ids.ids.len(), MAX_RECENT_IDS);
        assert_eq!(recent_ids.oldest_first.len(), MAX_RECENT_IDS);
        assert!(!recent_ids.contain("4") && recent_ids.contain("5"));
    }

    proptest! {
        /// However a log of first copies and possible repeats is divided into batches, each id is stored once.
        #[test]
        fn each_click_is_stored_once_however_the_log_is_divided(
            order in proptest::collection::vec((0_u8..12, any::<bool>()), 1..60),
        ) {
            // The log has at most one copy of each id without `again`; edges guarantee that.
            let mut unmarked = HashSet::new();
            let log: Vec<String> = order
                .iter()
                .map(|(id, _)| if unmarked.insert(*id) && id % 2 == 0 { format!("{id}") } else { format!("+{id}") })
                .collect();
            let mut recent_ids = RecentIds::default();
            let mut table = HashSet::new();
            let mut start = 0;
            for end in 1..=log.len() {
                if end < log.len() && !order[end].1 {
                    continue;
                }
                let rows = rows(&log[start..end]);
                start = end;
                let asked = to_look_up(&rows, &recent_ids);
                let ids = asked.iter().map(|possible| possible.click_id.to_owned());
                let found = ids.filter(|id| table.contains(id)).collect();
                let repeats = find(&rows, &recent_ids, &found);
                for (index, row) in rows.rows().enumerate() {
                    if repeats.contains(&index) {
                        continue;
                    }
                    prop_assert!(table.insert(row.click_id().to_owned()), "{} twice in {log:?}", row.click_id());
                    if row.is_possible_repeat() {
                        recent_ids.admit(row.click_id(), row.broker_ts());
                    }
                }
            }
            let ids: HashSet<String> = log.iter().map(|id| id.trim_start_matches('+').to_owned()).collect();
            prop_assert_eq!(table, ids);
        }
    }
}
