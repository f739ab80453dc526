//! Which clicks of a batch were counted before.
//!
//! Only a click marked `again` can be a repeat of a stored one, so unmarked clicks cost nothing, with one
//! exception: the marked copy may overtake the unmarked one, so marked ids are remembered for an hour.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use crate::clickhouse::Sought;
use crate::pipeline::batch::{Batch, BatchRow};
use crate::pipeline::deleted_links::DeletedLinks;

/// How long a marked id is remembered, by the broker's clock: longer than an edge keeps a record in flight.
pub const MEMORY: TimeDelta = TimeDelta::hours(1);

/// Ids remembered per partition at most, about 15 MB; the oldest go first.
pub const MEMORY_IDS: usize = 100_000;

/// The marked ids that were admitted within the last hour.
#[derive(Debug, Default)]
pub struct Remembered {
    ids: HashSet<Arc<str>>,
    oldest_first: VecDeque<(DateTime<Utc>, Arc<str>)>,
}

impl Remembered {
    /// Remembers an id, and forgets those that are too old beside it or too many.
    pub fn admit(&mut self, click_id: &str, broker_ts: DateTime<Utc>) {
        let id: Arc<str> = click_id.into();
        if !self.ids.insert(Arc::clone(&id)) {
            return;
        }
        self.oldest_first.push_back((broker_ts, id));
        while let Some((admitted, id)) = self.oldest_first.front() {
            if *admitted + MEMORY >= broker_ts && self.oldest_first.len() <= MEMORY_IDS {
                break;
            }
            self.ids.remove(id);
            self.oldest_first.pop_front();
        }
    }

    fn has(&self, click_id: &str) -> bool {
        self.ids.contains(click_id)
    }
}

/// Returns the rows whose ids have to be looked up among the stored clicks.
pub fn to_look_up<'a>(batch: &'a Batch, remembered: &Remembered) -> Vec<Sought<'a>> {
    batch.rows().filter_map(BatchRow::sought).filter(|sought| !remembered.has(sought.click_id)).collect()
}

/// Returns the places of the repeats, ascending; `stored` are the ids that the look-up found.
pub fn find(batch: &Batch, remembered: &Remembered, stored: &HashSet<String>) -> Vec<usize> {
    if !batch.has_marked() && remembered.ids.is_empty() {
        return Vec::new();
    }
    let marked: HashMap<&str, usize> = batch
        .rows()
        .enumerate()
        .filter(|(_, row)| row.is_marked())
        // Of several places the first stays: `collect` would keep the last one.
        .rev()
        .map(|(place, row)| (row.click_id(), place))
        .collect();
    // Ids of unmarked rows that a marked one repeats or is repeated by; other unmarked rows are not compared.
    let mut admitted: HashSet<&str> = HashSet::new();
    let mut repeats = Vec::new();
    for (place, row) in batch.rows().enumerate() {
        let id = row.click_id();
        let is_repeat = remembered.has(id)
            || if row.is_marked() {
                stored.contains(id) || admitted.contains(id)
            } else {
                marked.get(id).is_some_and(|first| *first < place)
            };
        if is_repeat {
            repeats.push(place);
        } else if marked.contains_key(id) {
            admitted.insert(id);
        }
    }
    repeats
}

/// The rows of a batch that are not stored.
pub(crate) struct Dropped {
    /// Their places, ascending.
    pub(crate) places: Vec<usize>,
    /// How many of them are clicks of deleted links; the others are repeats.
    pub(crate) deleted: usize,
}

impl Dropped {
    /// Tells them by the places of the repeats, ascending, and by the deleted links.
    pub(crate) fn new(batch: &Batch, repeats: &[usize], deleted_links: &DeletedLinks) -> Self {
        let mut dropped = Self { places: Vec::new(), deleted: 0 };
        let mut repeats = repeats.iter().peekable();
        for (place, row) in batch.rows().enumerate() {
            let is_repeat = repeats.next_if(|next| **next == place).is_some();
            let is_deleted = deleted_links.contain(row.link_id());
            dropped.deleted += usize::from(is_deleted);
            if is_repeat || is_deleted {
                dropped.places.push(place);
            }
        }
        dropped
    }

    /// Returns the rows that are stored and marked: a first copy of one may still come.
    pub(crate) fn admitted<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = BatchRow<'a>> {
        let mut dropped = self.places.iter().peekable();
        batch
            .rows()
            .enumerate()
            .filter(move |(place, _)| dropped.next_if(|next| *next == place).is_none())
            .map(|(_, row)| row)
            .filter(|row| row.is_marked())
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

    /// Rows with these ids, where a `+` in front marks a click sent again.
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
    fn unmarked_clicks_are_not_compared_with_each_other() {
        assert_eq!(find(&rows(&["a", "a"]), &Remembered::default(), &stored(&[])), [0; 0]);
        assert!(to_look_up(&rows(&["a", "a"]), &Remembered::default()).is_empty());
    }

    #[test]
    fn a_marked_click_is_a_repeat_of_an_earlier_one_in_the_batch_whichever_of_them_is_marked() {
        let none = Remembered::default();
        assert_eq!(find(&rows(&["a", "+a"]), &none, &stored(&[])), [1]);
        assert_eq!(find(&rows(&["+a", "a"]), &none, &stored(&[])), [1]);
        assert_eq!(find(&rows(&["+a", "+a", "b"]), &none, &stored(&[])), [1]);
    }

    #[test]
    fn a_marked_click_that_is_stored_is_dropped_and_another_is_admitted() {
        assert_eq!(find(&rows(&["+a", "+b"]), &Remembered::default(), &stored(&["a"])), [0]);
    }

    #[test]
    fn a_first_copy_that_arrives_second_is_dropped_within_the_hour() {
        let mut remembered = Remembered::default();
        remembered.admit("a", now());
        assert_eq!(find(&rows(&["a", "b"]), &remembered, &stored(&[])), [0]);
        assert_eq!(find(&rows(&["+a"]), &remembered, &stored(&[])), [0]);
        assert!(to_look_up(&rows(&["+a"]), &remembered).is_empty(), "it need not be looked up");
        remembered.admit("c", now() + MEMORY);
        assert!(remembered.has("a"));
        remembered.admit("d", now() + MEMORY + TimeDelta::milliseconds(1));
        assert!(!remembered.has("a"));
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut remembered = Remembered::default();
        for id in 0..MEMORY_IDS + 5 {
            remembered.admit(&id.to_string(), now());
        }
        assert_eq!(remembered.ids.len(), MEMORY_IDS);
        assert_eq!(remembered.oldest_first.len(), MEMORY_IDS);
        assert!(!remembered.has("4") && remembered.has("5"));
    }

    proptest! {
        /// However a log of first copies and marked repeats is cut into batches, each id is admitted once.
        #[test]
        fn every_click_is_admitted_exactly_once_however_the_log_is_cut(
            order in proptest::collection::vec((0_u8..12, any::<bool>()), 1..60),
        ) {
            // Of each id the log holds at most one unmarked copy; that is what edges promise.
            let mut unmarked = HashSet::new();
            let log: Vec<String> = order
                .iter()
                .map(|(id, _)| if unmarked.insert(*id) && id % 2 == 0 { format!("{id}") } else { format!("+{id}") })
                .collect();
            let mut remembered = Remembered::default();
            let mut table = HashSet::new();
            let mut start = 0;
            for end in 1..=log.len() {
                if end < log.len() && !order[end].1 {
                    continue;
                }
                let rows = rows(&log[start..end]);
                start = end;
                let asked = to_look_up(&rows, &remembered);
                let found = asked.iter().map(|sought| sought.click_id.to_owned()).filter(|id| table.contains(id)).collect();
                let repeats = find(&rows, &remembered, &found);
                for (place, row) in rows.rows().enumerate() {
                    if repeats.contains(&place) {
                        continue;
                    }
                    prop_assert!(table.insert(row.click_id().to_owned()), "{} twice in {log:?}", row.click_id());
                    if row.is_marked() {
                        remembered.admit(row.click_id(), row.broker_ts());
                    }
                }
            }
            let ids: HashSet<String> = log.iter().map(|id| id.trim_start_matches('+').to_owned()).collect();
            prop_assert_eq!(table, ids);
        }
    }
}
