//! Batches of clicks. Each batch is stored as one part of the table, as a whole or not at all.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use schemas::id::LinkId;
use schemas::row::{ClickRow, RowBytes};
use tokio::time::Instant;

use crate::clickhouse::{ClickKey, Insertion, SoughtClick};
use crate::pipeline::dead_letter::Unreadable;

/// Limits at which a batch is cut. It is also cut where the next row belongs to another table partition.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum rows of a batch. One insert must send it as one block; see [`crate::clickhouse`].
    pub rows: usize,
    /// Maximum bytes of rows and dead letters together, exceeded by at most the last one.
    pub bytes: usize,
    /// Maximum bytes of the batches of all lanes together; each lane gets an equal share. A batch with dropped rows is
    /// copied for its insert and takes up to twice its size until the insert ends.
    pub total_bytes: usize,
    /// How long a click waits for more clicks to share its insert.
    pub age: Duration,
    /// The same for a late click, because larger parts need fewer merges.
    pub late_age: Duration,
}

/// A click is late if its broker time is older than this by this machine's clock. More than the clocks may differ.
const LATE_AFTER: TimeDelta = TimeDelta::seconds(5);

impl Default for Limits {
    fn default() -> Self {
        Self {
            rows: 64_000,
            bytes: 24 << 20,
            total_bytes: 144 << 20,
            age: Duration::from_millis(200),
            late_age: Duration::from_secs(2),
        }
    }
}

/// A row of a batch.
#[derive(Debug, Clone, Copy)]
pub struct BatchRow<'a> {
    bytes: RowBytes<'a>,
    /// The edge's time, if the click is a possible repeat.
    again: Option<DateTime<Utc>>,
}

impl<'a> BatchRow<'a> {
    /// Offset within the partition.
    pub fn koff(self) -> u64 {
        self.bytes.koff()
    }

    /// Id of the click's link.
    pub fn link_id(self) -> LinkId {
        self.bytes.link_id()
    }

    /// The click's id.
    pub fn click_id(self) -> &'a str {
        self.bytes.click_id()
    }

    /// The broker's time.
    pub fn broker_ts(self) -> DateTime<Utc> {
        self.bytes.broker_ts()
    }

    /// Returns whether the click is a possible repeat.
    pub fn is_possible_repeat(self) -> bool {
        self.again.is_some()
    }

    /// Returns what the click is looked up by, if it is a possible repeat.
    pub fn possible_repeat(self) -> Option<SoughtClick<'a>> {
        let Self { bytes, again } = self;
        let (workspace_id, link_id) = (bytes.workspace_id(), bytes.link_id());
        let key = ClickKey { workspace_id, link_id, edge_time: again? };
        Some(SoughtClick { key, click_id: bytes.click_id(), seen_at: bytes.broker_ts() })
    }
}

/// The table partition of a row, as `toDate(broker_ts)` computes it.
fn day(broker_ts: DateTime<Utc>) -> NaiveDate {
    broker_ts.date_naive()
}

/// Encoded rows in one buffer.
#[derive(Debug, Default)]
struct Rows<B> {
    body: B,
    /// The end of each row in the body.
    ends: Vec<usize>,
    /// The indexes of the possible repeats, ascending, each with the edge's time.
    possible_repeats: Vec<(usize, DateTime<Utc>)>,
}

/// Collects rows and dead letters for a [`Batch`].
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
    /// Creates an empty batcher.
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

    /// Returns whether the row belongs to the same table partition as the row before it.
    ///
    /// A batch with rows of two partitions would become two parts, and a crash could store only one of them.
    pub fn accepts<S>(&self, row: &ClickRow<S>) -> bool {
        self.day.is_none_or(|of_last| of_last == day(row.broker_ts))
    }

    /// Adds a row that [`Batcher::accepts`] allows.
    pub fn push<S: AsRef<str>>(&mut self, row: &ClickRow<S>) {
        let Rows { body, ends, possible_repeats } = &mut self.rows;
        row.write_row_binary(body);
        if row.click.again {
            possible_repeats.push((ends.len(), row.click.occurred_at));
        }
        ends.push(body.len());
        let ClickRow { koff, broker_ts, .. } = *row;
        self.day = Some(day(broker_ts));
        (self.next, self.last_broker_ts) = (koff + 1, Some(broker_ts));
        self.deadline.get_or_insert_with(|| {
            let is_late = Utc::now() - broker_ts > LATE_AFTER;
            Instant::now() + if is_late { self.limits.late_age } else { self.limits.age }
        });
    }

    /// Adds a record that is not a valid click. It is written to the dead letters before the batch counts as processed.
    pub fn push_unreadable(&mut self, record: Unreadable) {
        self.dead_bytes += record.payload.len();
        (self.next, self.last_broker_ts) = (record.offset + 1, record.broker_ts);
        self.unreadable.push(record);
        self.deadline.get_or_insert_with(|| Instant::now() + self.limits.age);
    }

    /// Returns whether the batch has reached a size limit, when this many batchers share the total.
    pub fn is_full(&self, open_lanes: usize) -> bool {
        let Limits { rows, bytes, total_bytes, .. } = self.limits;
        let bytes = bytes.min(total_bytes / open_lanes.max(1));
        self.rows.ends.len() >= rows || self.rows.body.len() + self.dead_bytes >= bytes
    }

    /// Returns when the batch must be cut at any size; `None` while it is empty.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the collected batch and starts an empty one; `None` when there is nothing.
    pub fn cut(&mut self) -> Option<Batch> {
        self.deadline.take()?;
        (self.dead_bytes, self.day) = (0, None);
        let Rows { body, ends, possible_repeats } = std::mem::take(&mut self.rows);
        Some(Batch {
            rows: Rows { body: body.into(), ends, possible_repeats },
            stored: 0,
            unreadable: std::mem::take(&mut self.unreadable),
            next: self.next,
            last_broker_ts: self.last_broker_ts,
        })
    }

    /// Reuses the memory of a stored batch for the next rows, if no row was added since it was cut.
    ///
    /// Allocating blocks of this size for each batch on many threads would fragment the heap.
    pub fn reuse(&mut self, batch: Batch) {
        let Rows { body, mut ends, mut possible_repeats } = batch.rows;
        // A connection may still hold the body.
        if self.deadline.is_some() || !body.is_unique() {
            return;
        }
        let mut body = Vec::from(body);
        // After a backlog, batches are small again and need less memory.
        if body.len() < body.capacity() / 2 {
            return;
        }
        body.clear();
        ends.clear();
        possible_repeats.clear();
        self.rows = Rows { body, ends, possible_repeats };
    }
}

/// Rows of one table partition in offset order, and the dead letters between them.
#[derive(Debug)]
pub struct Batch {
    rows: Rows<Bytes>,
    /// How many rows at the start are known to be stored.
    stored: usize,
    unreadable: Vec<Unreadable>,
    next: u64,
    last_broker_ts: Option<DateTime<Utc>>,
}

impl Batch {
    /// Returns the rows that are not known to be stored, in offset order.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = BatchRow<'_>> + ExactSizeIterator {
        (self.stored..self.rows.ends.len()).map(|place| self.row(place))
    }

    fn row(&self, place: usize) -> BatchRow<'_> {
        let Rows { body, ends, possible_repeats } = &self.rows;
        let again = possible_repeats
            .binary_search_by_key(&place, |(place, _)| *place)
            .ok()
            .map(|at| possible_repeats[at].1);
        BatchRow { bytes: RowBytes(&body[self.start(place)..ends[place]]), again }
    }

    /// Returns the start of a row in the body.
    fn start(&self, place: usize) -> usize {
        place.checked_sub(1).map_or(0, |before| self.rows.ends[before])
    }

    /// Returns whether any row is a possible repeat.
    pub fn has_possible_repeats(&self) -> bool {
        !self.rows.possible_repeats.is_empty()
    }

    /// Returns the records that are not valid clicks.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    /// Returns the offset after the last record of the batch.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the broker's time of the last record, if it had one.
    pub fn last_broker_ts(&self) -> Option<DateTime<Utc>> {
        self.last_broker_ts
    }

    /// Excludes the rows below an offset, which are known to be stored.
    pub fn skip_below(&mut self, offset: u64) {
        let below = self.rows().take_while(|row| row.koff() < offset).count();
        self.stored += below;
    }

    /// Returns the encoded rows without those at the given indexes of [`Batch::rows`] (ascending); `None` when no row
    /// is left.
    pub fn insertion(&self, dropped: &[usize]) -> Option<Insertion> {
        let rows = self.rows().len() - dropped.len();
        if rows == 0 {
            return None;
        }
        // Rows are only excluded at the front, so the rest of the body is contiguous.
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

    /// Returns a click of the fixture's link with this id, at this offset.
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

        let mut one_of_many = Batcher::new(Limits { total_bytes: 10_000, ..Limits::default() });
        one_of_many.push(&row(1, "a", false, now));
        assert!(!one_of_many.is_full(1) && one_of_many.is_full(100));
    }

    #[test]
    fn the_next_batch_reuses_the_memory_of_a_stored_one() {
        let now = at("2026-11-21T00:00:00Z");
        let mut batcher = batcher();
        (0..1_000).for_each(|koff| batcher.push(&row(koff, "a", false, now)));
        let full = batcher.cut().unwrap();
        let memory = full.rows.body.as_ptr();
        batcher.reuse(full);
        assert!(batcher.cut().is_none(), "no row is left");
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
        // A body that is still read is not overwritten, and neither are rows added since.
        (0..1_000).for_each(|koff| batcher.push(&row(koff, "c", false, now)));
        let read = batcher.cut().unwrap();
        let (reader, before) = (read.rows.body.clone(), read.rows.body.to_vec());
        batcher.reuse(read);
        batcher.push(&row(1_000, "d", false, now));
        assert_eq!(reader, before);
        assert_ne!(batcher.cut().unwrap().rows.body.as_ptr(), reader.as_ptr());
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_counts_from_the_first_row() {
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
    async fn late_rows_wait_longer_for_others() {
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
        fn an_insertion_has_exactly_the_rows_that_are_not_dropped(
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
