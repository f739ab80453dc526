//! How far one segment has come on its way to Kafka.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::spool::record::Found;
use crate::spool::{Confirmed, Next, Reader, Segment, Spool};

/// Least time between two entries of when records were answered, in milliseconds.
const TIMES_INTERVAL: i64 = 100;

/// A segment, where it is read, and which of its records Kafka has.
#[derive(Debug)]
pub(super) struct Progress {
    segment: Arc<Segment>,
    ordinal: u32,
    confirmed: Confirmed,
    /// Open only while there is something to read.
    reader: Option<Reader>,
    at: u64,
    /// The index that the next record has if none is missing.
    next_index: u32,
    /// Records before this one may have reached Kafka already.
    again_below: u32,
    sent: u64,
    settled: u64,
    /// When no record has been under way any more, so far.
    quiet_since: Option<Instant>,
    /// Indexes, and when these records were answered: enough of them to tell the age of the oldest that waits.
    times: VecDeque<(u32, i64)>,
}

/// What is known about a record that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It was never handed to a producer.
    New,
    /// It may have reached Kafka.
    Again,
    /// Kafka has it.
    Confirmed,
}

impl Progress {
    /// Begins with a segment, the how manyth this process sends from is its `ordinal`.
    pub(super) fn new(segment: Arc<Segment>, ordinal: u32, spool: &Spool) -> Self {
        let again_below = if segment.is_recovered() { u32::MAX } else { 0 };
        Self {
            confirmed: spool.confirmed(&segment),
            segment,
            ordinal,
            reader: None,
            at: 0,
            next_index: 0,
            again_below,
            sent: 0,
            settled: 0,
            quiet_since: None,
            times: VecDeque::new(),
        }
    }

    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub(super) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Begins anew, with another producer: what one that failed had confirmed may be gone with Kafka's log.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.again_below = self.again_below.max(self.next_index);
        self.reader = None;
        self.at = 0;
        self.next_index = 0;
        self.sent = 0;
        self.settled = 0;
        self.quiet_since = None;
        self.times.clear();
        self.confirmed.clear()
    }

    /// Returns what comes next, and for a record what is known about it.
    pub(super) fn next(&mut self) -> io::Result<(Next<'_>, Standing)> {
        // Asked before the end, or a last record appended in between would be left out.
        let sealed = self.segment.is_sealed();
        let end = self.segment.end();
        if self.at >= end {
            if sealed {
                self.reader = None;
            }
            return Ok((Next::End, Standing::New));
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(Reader::new(&self.segment)?),
        };
        let next = reader.next(end)?;
        let standing = match &next {
            Next::Record(found) if self.confirmed.contains(found.index) => Standing::Confirmed,
            Next::Record(found) if found.index < self.again_below => Standing::Again,
            _ => Standing::New,
        };
        Ok((next, standing))
    }

    /// Passes a record, which is under way now if it was `sent`; returns how many are missing before it.
    pub(super) fn pass(&mut self, record: Passed, sent: bool) -> u32 {
        let missing = record.index.saturating_sub(self.next_index);
        self.next_index = record.index.saturating_add(1);
        self.sent += u64::from(sent);
        if sent && self.times.back().is_none_or(|(_, at)| record.at.saturating_sub(*at) >= TIMES_INTERVAL) {
            self.times.push_back((record.index, record.at));
        }
        self.skip(record.consumed);
        missing
    }

    /// Passes bytes that are no record.
    pub(super) fn skip(&mut self, consumed: usize) {
        if let Some(reader) = &mut self.reader {
            reader.advance(consumed);
            self.at = reader.position();
        }
    }

    /// Notes that Kafka has a record.
    pub(super) fn confirm(&mut self, index: u32) {
        self.settled += 1;
        self.confirmed.insert(index);
        self.segment.confirm(1);
    }

    /// Brings what is confirmed to where the next process finds it.
    pub(super) fn write(&mut self) -> io::Result<()> {
        self.confirmed.write()
    }

    /// Returns whether there is something to read.
    pub(super) fn has_news(&self) -> bool {
        self.at.max(self.segment.start()) < self.segment.end()
    }

    /// Returns how many records wait for their delivery report.
    pub(super) fn under_way(&self) -> u64 {
        self.sent.saturating_sub(self.settled)
    }

    /// Returns how many records are not confirmed; for what a former process left only those that were read.
    pub(super) fn waiting(&self) -> u64 {
        self.segment.records().max(self.sent).saturating_sub(self.settled)
    }

    /// Returns when the oldest record was answered that is not confirmed, in milliseconds since 1970 and up to
    /// [`TIMES_INTERVAL`] too early; `None` if none is under way, unless nothing of the segment ever was.
    pub(super) fn oldest_waiting(&mut self) -> Option<i64> {
        if self.under_way() == 0 {
            return self.segment.first_at().filter(|_| self.sent == 0 && self.has_news());
        }
        let first = self.confirmed.first_missing();
        while self.times.get(1).is_some_and(|(index, _)| *index <= first) {
            self.times.pop_front();
        }
        self.times.front().map(|(_, at)| *at)
    }

    /// Returns whether Kafka has had all of it for `rest`, so that it may be deleted.
    pub(super) fn is_over(&mut self, rest: Duration) -> bool {
        // Sealed first, for the reason given in `next`.
        if !self.segment.is_sealed() || self.has_news() || self.under_way() > 0 {
            return false;
        }
        let since = *self.quiet_since.get_or_insert_with(Instant::now);
        // The rest is for Kafka to bring clicks onto its disk, a former process' too.
        self.confirmed.count() == 0 || since.elapsed() >= rest
    }
}

/// What [`Progress::pass`] needs of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    index: u32,
    at: i64,
    consumed: usize,
}

impl From<&Found<'_>> for Passed {
    fn from(found: &Found<'_>) -> Self {
        Self { index: found.index, at: found.record.at, consumed: found.consumed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::record::Record;
    use crate::spool::tests::Directory;

    /// Sends everything there is; returns the indexes that were marked, and those that were not.
    fn send_all(progress: &mut Progress) -> (Vec<u32>, Vec<u32>) {
        let (mut marked, mut unmarked) = (Vec::new(), Vec::new());
        loop {
            let (next, standing) = progress.next().unwrap();
            match next {
                Next::Record(found) => {
                    match standing {
                        Standing::Again => marked.push(found.index),
                        Standing::New => unmarked.push(found.index),
                        Standing::Confirmed => {}
                    }
                    let passed = Passed::from(&found);
                    progress.pass(passed, standing != Standing::Confirmed);
                }
                Next::Damage(bytes) => progress.skip(bytes),
                Next::End => return (marked, unmarked),
            }
        }
    }

    fn append(spool: &Spool, at: i64) {
        let record = Record { at, partition: 0, key: b"k", value: b"{}" };
        spool.append(&mut record.encode().unwrap()).unwrap();
    }

    fn open(directory: &Directory) -> Spool {
        Spool::open(directory.path(), None).unwrap()
    }

    fn first(spool: &Spool) -> Progress {
        Progress::new(Arc::clone(&spool.segments()[0]), 0, spool)
    }

    #[test]
    fn a_segment_is_over_only_when_it_is_sealed_read_and_confirmed() {
        let directory = Directory::new();
        let spool = open(&directory);
        append(&spool, 0);
        append(&spool, 0);
        let mut progress = first(&spool);
        assert!(progress.has_news());
        assert_eq!(send_all(&mut progress), (vec![], vec![0, 1]));
        spool.seal();
        assert!(!progress.is_over(Duration::ZERO));
        progress.confirm(1);
        assert!(!progress.is_over(Duration::ZERO));
        progress.confirm(0);
        assert!(progress.is_over(Duration::ZERO));
        assert!(!progress.is_over(Duration::from_secs(60)));
    }

    #[test]
    fn a_segment_that_grows_is_not_over() {
        let directory = Directory::new();
        let spool = open(&directory);
        append(&spool, 0);
        let mut progress = first(&spool);
        send_all(&mut progress);
        progress.confirm(0);
        assert!(!progress.is_over(Duration::ZERO));
    }

    #[test]
    fn only_what_was_sent_before_is_marked_when_a_segment_begins_anew() {
        let directory = Directory::new();
        let spool = open(&directory);
        append(&spool, 0);
        append(&spool, 0);
        let mut progress = first(&spool);
        send_all(&mut progress);
        progress.confirm(0);
        progress.write().unwrap();
        append(&spool, 0);
        progress.restart().unwrap();
        assert_eq!(send_all(&mut progress), (vec![0, 1], vec![2]));
        assert_eq!(progress.under_way(), 3);
        assert_eq!(send_all(&mut first(&spool)), (vec![], vec![0, 1, 2]), "also after a kill");
    }

    #[test]
    fn what_was_left_behind_is_marked_and_only_sent_where_it_is_not_confirmed() {
        let directory = Directory::new();
        let spool = open(&directory);
        (0..5).for_each(|_| append(&spool, 0));
        let mut progress = first(&spool);
        send_all(&mut progress);
        [0, 1, 3].into_iter().for_each(|index| progress.confirm(index));
        progress.write().unwrap();
        progress.confirm(4);
        drop((progress, spool));

        let spool = open(&directory);
        let mut progress = first(&spool);
        assert_eq!(send_all(&mut progress), (vec![2, 4], vec![]));
        [2, 4].into_iter().for_each(|index| progress.confirm(index));
        progress.write().unwrap();
        assert!(progress.is_over(Duration::ZERO));
        drop((progress, spool));

        let spool = open(&directory);
        let mut progress = first(&spool);
        assert_eq!(send_all(&mut progress), (vec![], vec![]));
        assert!(!progress.is_over(Duration::from_secs(60)), "it was confirmed a moment ago");
        assert!(progress.is_over(Duration::ZERO));
    }

    #[test]
    fn the_age_of_the_oldest_waiting_record_is_known() {
        let directory = Directory::new();
        let spool = open(&directory);
        (1..=5).for_each(|second| append(&spool, second * 1_000));
        let mut progress = first(&spool);
        assert_eq!(progress.oldest_waiting(), Some(1_000));
        send_all(&mut progress);
        assert_eq!(progress.oldest_waiting(), Some(1_000));
        [0, 1, 3].into_iter().for_each(|index| progress.confirm(index));
        assert_eq!(progress.oldest_waiting(), Some(3_000));
        [2, 4].into_iter().for_each(|index| progress.confirm(index));
        assert_eq!(progress.oldest_waiting(), None);
        append(&spool, 6_000);
        send_all(&mut progress);
        assert_eq!(progress.oldest_waiting(), Some(6_000));
    }
}
