//! Clicks gathered into batches, each of which becomes one part of the table: all of it or nothing.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use schemas::id::LinkId;
use schemas::row::{ClickRow, RowBytes};
use tokio::time::Instant;

use crate::clickhouse::{AgainKey, Insertion, Sought};
use crate::pipeline::dead_letter::Unreadable;

/// When a batch is cut, besides at a border of the table's partitions.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Rows of a batch at most. One insert must carry it as one block; see [`crate::clickhouse`].
    pub rows: usize,
    /// Bytes at most, of rows and dead letters together, give or take the last one.
    pub bytes: usize,
    /// Bytes at most of the batches of all lanes together, each of which has an equal part of them. A batch of which
    /// rows are dropped is copied for its insert, so it takes up to twice its size while that lasts.
    pub bytes_of_all: usize,
    /// How long a click waits for others to share its insert.
    pub age: Duration,
    /// The same for a click that is late already: large parts are merged less often than small ones.
    pub age_behind: Duration,
}

/// How old a click is, by the broker's clock and this machine's, to count as late: more than the clocks may differ.
const BEHIND: TimeDelta = TimeDelta::seconds(5);

impl Default for Limits {
    fn default() -> Self {
        Self {
            rows: 64_000,
            bytes: 24 << 20,
            bytes_of_all: 144 << 20,
            age: Duration::from_millis(200),
            age_behind: Duration::from_secs(2),
        }
    }
}

/// A row of a batch.
#[derive(Debug, Clone, Copy)]
pub struct BatchRow<'a> {
    bytes: RowBytes<'a>,
    /// The edge's clock, of a click that may be a repeat.
    again: Option<DateTime<Utc>>,
}

impl<'a> BatchRow<'a> {
    /// Offset within the partition.
    pub fn koff(self) -> u64 {
        self.bytes.koff()
    }

    /// The click's link.
    pub fn link_id(self) -> LinkId {
        self.bytes.link_id()
    }

    /// The click's id.
    pub fn click_id(self) -> &'a str {
        self.bytes.click_id()
    }

    /// The broker's clock.
    pub fn broker_ts(self) -> DateTime<Utc> {
        self.bytes.broker_ts()
    }

    /// Returns whether the click may be a repeat.
    pub fn is_marked(self) -> bool {
        self.again.is_some()
    }

    /// Returns what the click is looked up by, if it may be a repeat.
    pub fn sought(self) -> Option<Sought<'a>> {
        let Self { bytes, again } = self;
        let (workspace_id, link_id) = (bytes.workspace_id(), bytes.link_id());
        let key = AgainKey { workspace_id, link_id, edge_time: again? };
        Some(Sought { key, click_id: bytes.click_id(), broker_ts: bytes.broker_ts() })
    }
}

/// The table partition of a row, as `toDate(broker_ts)` computes it.
fn day(broker_ts: DateTime<Utc>) -> NaiveDate {
    broker_ts.date_naive()
}

/// Rows in one piece of memory.
#[derive(Debug, Default)]
struct Rows<B> {
    body: B,
    /// Where each row ends in the body.
    ends: Vec<usize>,
    /// The places of those that may be repeats, ascending, and the edge's clock of each.
    marked: Vec<(usize, DateTime<Utc>)>,
}

/// Gathers what will be a [`Batch`].
#[derive(Debug)]
pub struct Batcher {
    limits: Limits,
    rows: Rows<Vec<u8>>,
    day: Option<NaiveDate>,
    unreadable: Vec<Unreadable>,
    dead_bytes: usize,
    next: u64,
    last_broker_ts: Option<DateTime<Utc>>,
    deadline: Option<Instant>,
}

impl Batcher {
    /// Makes an empty one.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            rows: Rows::default(),
            day: None,
            unreadable: Vec::new(),
            dead_bytes: 0,
            next: 0,
            last_broker_ts: None,
            deadline: None,
        }
    }

    /// Returns whether the row would go into the same table partition as the row before it.
    ///
    /// A batch over two partitions would be two parts, and a crash between them would store half of it.
    pub fn accepts<S>(&self, row: &ClickRow<S>) -> bool {
        self.day.is_none_or(|of_last| of_last == day(row.broker_ts))
    }

    /// Adds a row that [`Batcher::accepts`].
    pub fn push<S: AsRef<str>>(&mut self, row: &ClickRow<S>) {
        let Rows { body, ends, marked } = &mut self.rows;
        row.write_row_binary(body);
        if row.click.again {
            marked.push((ends.len(), row.click.occurred_at));
        }
        ends.push(body.len());
        let ClickRow { koff, broker_ts, .. } = *row;
        self.day = Some(day(broker_ts));
        (self.next, self.last_broker_ts) = (koff + 1, Some(broker_ts));
        self.deadline.get_or_insert_with(|| {
            let is_late = Utc::now() - broker_ts > BEHIND;
            Instant::now() + if is_late { self.limits.age_behind } else { self.limits.age }
        });
    }

    /// Adds a message that is no row; it is delivered before the batch counts as done.
    pub fn push_unreadable(&mut self, record: Unreadable) {
        self.dead_bytes += record.payload.len();
        (self.next, self.last_broker_ts) = (record.offset + 1, record.broker_ts);
        self.unreadable.push(record);
        self.deadline.get_or_insert_with(|| Instant::now() + self.limits.age);
    }

    /// Returns whether a limit of size is reached by one of so many that gather.
    pub fn is_full(&self, gathering: usize) -> bool {
        let Limits { rows, bytes, bytes_of_all, .. } = self.limits;
        let bytes = bytes.min(bytes_of_all / gathering.max(1));
        self.rows.ends.len() >= rows || self.rows.body.len() + self.dead_bytes >= bytes
    }

    /// Returns when the batch is to be cut however small it is; `None` while it is empty.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Takes out what was gathered; `None` when there is nothing.
    pub fn cut(&mut self) -> Option<Batch> {
        self.deadline.take()?;
        (self.dead_bytes, self.day) = (0, None);
        let Rows { body, ends, marked } = std::mem::take(&mut self.rows);
        Some(Batch {
            rows: Rows { body: body.into(), ends, marked },
            stored: 0,
            unreadable: std::mem::take(&mut self.unreadable),
            next: self.next,
            last_broker_ts: self.last_broker_ts,
        })
    }

    /// Gathers the next rows in the memory of a batch that is done, if nothing has been gathered since it was cut.
    ///
    /// Batches follow each other in a lane, and blocks of this size, freed and asked for again on many threads, would
    /// leave the heap full of holes.
    pub fn reuse(&mut self, batch: Batch) {
        let Rows { body, mut ends, mut marked } = batch.rows;
        // A connection may not have let go of it yet.
        if self.deadline.is_some() || !body.is_unique() {
            return;
        }
        let mut body = Vec::from(body);
        // After a backlog batches are small again.
        if body.len() < body.capacity() / 2 {
            return;
        }
        body.clear();
        ends.clear();
        marked.clear();
        self.rows = Rows { body, ends, marked };
    }
}

/// Rows of one table partition in the order of their offsets, and the dead letters between them.
#[derive(Debug)]
pub struct Batch {
    rows: Rows<Bytes>,
    /// How many of the rows, from the first on, are known to be stored.
    stored: usize,
    unreadable: Vec<Unreadable>,
    next: u64,
    last_broker_ts: Option<DateTime<Utc>>,
}

impl Batch {
    /// Returns the rows that are not known to be stored, in the order of their offsets.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = BatchRow<'_>> + ExactSizeIterator {
        (self.stored..self.rows.ends.len()).map(|place| self.row(place))
    }

    fn row(&self, place: usize) -> BatchRow<'_> {
        let Rows { body, ends, marked } = &self.rows;
        let again = marked.binary_search_by_key(&place, |(place, _)| *place).ok().map(|at| marked[at].1);
        BatchRow { bytes: RowBytes(&body[self.start(place)..ends[place]]), again }
    }

    /// Returns where a row begins in the body.
    fn start(&self, place: usize) -> usize {
        place.checked_sub(1).map_or(0, |before| self.rows.ends[before])
    }

    /// Returns whether any of the rows may be a repeat.
    pub fn has_marked(&self) -> bool {
        !self.rows.marked.is_empty()
    }

    /// Returns the messages that are no rows.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    /// Returns the offset behind everything in the batch.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the broker's time of the last message, if it had one.
    pub fn last_broker_ts(&self) -> Option<DateTime<Utc>> {
        self.last_broker_ts
    }

    /// Leaves out the rows below an offset, because they are known to be stored.
    pub fn skip_below(&mut self, offset: u64) {
        let below = self.rows().take_while(|row| row.koff() < offset).count();
        self.stored += below;
    }

    /// Returns the bytes of the rows, without those at the given places of [`Batch::rows`] (ascending); `None` when no
    /// row is left.
    pub fn insertion(&self, dropped: &[usize]) -> Option<Insertion> {
        let rows = self.rows().len() - dropped.len();
        if rows == 0 {
            return None;
        }
        // Rows are only ever taken off the front, so what is behind them is all of it.
        if dropped.is_empty() {
            let last_koff = self.rows().next_back()?.koff();
            return Some(Insertion {
                body: self.rows.body.slice(self.start(self.stored)..),
                rows,
                last_koff,
            });
        }
        let mut body = Vec::with_capacity(self.rows.body.len() - self.start(self.stored));
        let mut last_koff = 0;
        let mut dropped = dropped.iter().peekable();
        for (place, row) in self.rows().enumerate() {
            if dropped.next_if(|next| **next == place).is_none() {
                body.extend_from_slice(row.bytes.0);
                last_koff = row.koff();
            }
        }
        Some(Insertion { body: body.into(), rows, last_koff })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use chrono::TimeDelta;
    use proptest::prelude::*;
    use schemas::message::{Click, Message as _};
    use schemas::row::source;

    use super::*;

    /// A click of the fixture's link with this id, at this offset.
    pub(crate) fn row(koff: u64, click_id: &str, again: bool, broker_ts: DateTime<Utc>) -> ClickRow {
        let mut click = Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json")).unwrap();
        click.click_id = click_id.to_owned();
        click.again = again;
        ClickRow { click, src: source(1, 0), koff, broker_ts }
    }

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn batcher() -> Batcher {
        Batcher::new(Limits::default())
    }

    #[test]
    fn a_day_boundary_in_utc_cuts_a_batch_in_either_direction() {
        let (before_midnight, midnight) = (at("2026-11-30T23:59:59.999Z"), at("2026-12-01T00:00:00Z"));
        for (before, after) in [(before_midnight, midnight), (midnight, before_midnight)] {
            let mut batcher = batcher();
            assert!(batcher.accepts(&row(1, "a", false, before)));
            batcher.push(&row(1, "a", false, before));
            assert!(batcher.accepts(&row(2, "b", false, before)));
            assert!(!batcher.accepts(&row(2, "b", false, after)));
            batcher.cut().unwrap();
            assert!(batcher.accepts(&row(2, "b", false, after)));
        }
        let (this, next_year) = (at("2026-11-30T00:00:00Z"), at("2027-11-30T00:00:00Z"));
        let mut batcher = batcher();
        batcher.push(&row(1, "a", false, this));
        assert!(!batcher.accepts(&row(2, "b", false, next_year)));
    }

    #[test]
    fn a_batch_is_full_by_rows_or_by_bytes() {
        let now = at("2026-11-21T00:00:00Z");
        let mut by_rows = Batcher::new(Limits { rows: 2, ..Limits::default() });
        by_rows.push(&row(1, "a", false, now));
        assert!(!by_rows.is_full(1));
        by_rows.push(&row(2, "b", false, now));
        assert!(by_rows.is_full(1));

        let mut by_bytes = Batcher::new(Limits { bytes: 1, ..Limits::default() });
        assert!(!by_bytes.is_full(1));
        by_bytes.push(&row(1, "a", false, now));
        assert!(by_bytes.is_full(1));

        let mut one_of_many = Batcher::new(Limits { bytes_of_all: 10_000, ..Limits::default() });
        one_of_many.push(&row(1, "a", false, now));
        assert!(!one_of_many.is_full(1) && one_of_many.is_full(100));
    }

    #[test]
    fn the_memory_of_a_batch_that_is_done_is_the_next_ones_unless_it_is_much_too_large() {
        let now = at("2026-11-21T00:00:00Z");
        let mut batcher = batcher();
        (0..1_000).for_each(|koff| batcher.push(&row(koff, "a", false, now)));
        let full = batcher.cut().unwrap();
        let memory = full.rows.body.as_ptr();
        batcher.reuse(full);
        assert!(batcher.cut().is_none(), "nothing of it is left");
        batcher.push(&row(1_000, "b", false, now));
        let small = batcher.cut().unwrap();
        assert_eq!((small.rows.body.as_ptr(), small.rows().len(), small.next), (memory, 1, 1_001));
        assert_eq!(small.insertion(&[]).unwrap().body, {
            let mut alone = Batcher::new(Limits::default());
            alone.push(&row(1_000, "b", false, now));
            alone.cut().unwrap().rows.body
        });
        batcher.reuse(small);
        assert_eq!((batcher.rows.body.capacity(), batcher.rows.ends.capacity()), (0, 0));
        // What somebody still reads is not written over, nor what came in meanwhile.
        (0..1_000).for_each(|koff| batcher.push(&row(koff, "c", false, now)));
        let read = batcher.cut().unwrap();
        let (reader, before) = (read.rows.body.clone(), read.rows.body.to_vec());
        batcher.reuse(read);
        batcher.push(&row(1_000, "d", false, now));
        assert_eq!(reader, before);
        assert_ne!(batcher.cut().unwrap().rows.body.as_ptr(), reader.as_ptr());
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_counts_from_the_first_row_and_an_empty_batch_has_none() {
        let now = Utc::now();
        let mut batcher = batcher();
        assert_eq!(batcher.deadline(), None);
        assert!(batcher.cut().is_none());
        let start = Instant::now();
        batcher.push(&row(1, "a", false, now));
        tokio::time::advance(Duration::from_millis(150)).await;
        batcher.push(&row(2, "b", false, now));
        assert_eq!(batcher.deadline(), Some(start + Duration::from_millis(200)));
        batcher.cut().unwrap();
        assert_eq!(batcher.deadline(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_are_late_already_wait_longer_for_others() {
        let mut batcher = batcher();
        let start = Instant::now();
        batcher.push(&row(1, "a", false, Utc::now() - TimeDelta::minutes(5)));
        batcher.push(&row(2, "b", false, Utc::now()));
        assert_eq!(batcher.deadline(), Some(start + Duration::from_secs(2)));
        batcher.cut().unwrap();
        batcher.push(&row(3, "c", false, Utc::now()));
        assert_eq!(batcher.deadline(), Some(start + Duration::from_millis(200)));
    }

    proptest! {
        #[test]
        fn an_insertion_has_the_bytes_of_exactly_the_rows_that_are_left(
            count in 1_u64..40,
            skip in 0_u64..50,
            keep in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let now = at("2026-11-21T00:00:00Z");
            let rows: Vec<ClickRow> = (0..count).map(|koff| row(koff, &format!("click-{koff}"), false, now)).collect();
            let mut batcher = batcher();
            rows.iter().for_each(|row| batcher.push(row));
            let mut batch = batcher.cut().unwrap();
            batch.skip_below(skip);
            let dropped: Vec<usize> = (0..batch.rows().len()).filter(|place| !keep[*place]).collect();

            let (mut expected, mut last) = (Vec::new(), 0);
            let left: Vec<&ClickRow> = rows.iter().filter(|row| row.koff >= skip).collect();
            for (place, row) in left.iter().enumerate() {
                if keep[place] {
                    row.write_row_binary(&mut expected);
                    last = row.koff;
                }
            }
            match batch.insertion(&dropped) {
                None => prop_assert!(expected.is_empty()),
                Some(insertion) => {
                    prop_assert_eq!(insertion.last_koff, last);
                    prop_assert_eq!(insertion.rows, left.len() - dropped.len());
                    prop_assert_eq!(&insertion.body[..], &expected[..]);
                }
            }
        }

        #[test]
        fn no_batch_spans_two_table_partitions(hours in proptest::collection::vec(0_i64..120, 1..60)) {
            let start = at("2026-11-21T00:00:00Z");
            let mut batcher = batcher();
            let mut batches = Vec::new();
            for (koff, hour) in hours.iter().enumerate() {
                let row = row(koff as u64, "x", false, start + TimeDelta::hours(*hour));
                if !batcher.accepts(&row) {
                    batches.extend(batcher.cut());
                }
                batcher.push(&row);
            }
            batches.extend(batcher.cut());
            let mut offsets = Vec::new();
            for batch in &batches {
                let days: std::collections::BTreeSet<_> = batch.rows().map(|row| day(row.broker_ts())).collect();
                prop_assert_eq!(days.len(), 1);
                offsets.extend(batch.rows().map(BatchRow::koff));
            }
            prop_assert_eq!(offsets, (0..hours.len() as u64).collect::<Vec<_>>());
        }
    }
}
