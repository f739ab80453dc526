//! The progress of publishing one segment.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::spool::record::Found;
use crate::spool::{Confirmed, Next, Reader, Segment, Spool};

/// Minimum time between two entries of `times`, in milliseconds.
const TIMES_INTERVAL: i64 = 100;

/// A segment with the position of its reader and the records that Kafka has confirmed.
#[derive(Debug)]
pub(super) struct Progress {
    segment: Arc<Segment>,
    ordinal: u32,
    confirmed: Confirmed,
    /// Open while there may be something to read.
    reader: Option<Reader>,
    position: u64,
    /// The index of the next record if none is missing.
    next_index: u32,
    /// Records below this index may have reached Kafka already.
    repeats_below: u32,
    /// Records that were passed to the current producer, and those of them that Kafka has confirmed.
    sent: u64,
    delivered: u64,
    /// When all records were found to be confirmed.
    finished_at: Option<Instant>,
    /// Indexes of some sent records and when they were answered, for the age of the oldest unconfirmed record.
    times: VecDeque<(u32, i64)>,
}

/// The state of a record that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordState {
    /// The record was never passed to a producer.
    New,
    /// The record may have reached Kafka.
    PossibleRepeat,
    /// Kafka has confirmed the record.
    Confirmed,
}

impl Progress {
    /// Starts with a segment. `ordinal` is the number of segments that this process started before it.
    pub(super) fn new(segment: Arc<Segment>, ordinal: u32, spool: &Spool) -> Self {
        let repeats_below = if segment.is_recovered() { u32::MAX } else { 0 };
        Self {
            confirmed: spool.confirmed(&segment),
            segment,
            ordinal,
            reader: None,
            position: 0,
            next_index: 0,
            repeats_below,
            sent: 0,
            delivered: 0,
            finished_at: None,
            times: VecDeque::new(),
        }
    }

    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub(super) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Starts again from the beginning, for a new producer. Removes the confirmations too, because Kafka may have lost
    /// records that it confirmed to the failed producer.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.repeats_below = self.repeats_below.max(self.next_index);
        self.reader = None;
        self.position = 0;
        self.next_index = 0;
        self.sent = 0;
        self.delivered = 0;
        self.finished_at = None;
        self.times.clear();
        self.confirmed.clear()
    }

    /// Returns what follows in the segment, and the state of a record. Does not advance.
    pub(super) fn next(&mut self) -> io::Result<(Next<'_>, RecordState)> {
        // Before `end`, because a last record may be appended before the segment is sealed.
        let sealed = self.segment.is_sealed();
        let end = self.segment.end();
        if self.position >= end {
            if sealed {
                self.reader = None;
            }
            return Ok((Next::End, RecordState::New));
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(Reader::new(&self.segment)?),
        };
        let next = reader.next(end)?;
        let state = match &next {
            Next::Record(found) if self.confirmed.contains(found.index) => RecordState::Confirmed,
            Next::Record(found) if found.index < self.repeats_below => RecordState::PossibleRepeat,
            _ => RecordState::New,
        };
        Ok((next, state))
    }

    /// Advances past a record. `sent` is whether it was passed to the producer. Returns how many records are missing
    /// before it.
    pub(super) fn advance(&mut self, record: ReadRecord, sent: bool) -> u32 {
        let missing = record.index.saturating_sub(self.next_index);
        self.next_index = record.index.saturating_add(1);
        self.sent += u64::from(sent);
        if sent && self.times.back().is_none_or(|(_, at)| record.at.saturating_sub(*at) >= TIMES_INTERVAL) {
            self.times.push_back((record.index, record.at));
        }
        self.skip(record.consumed);
        missing
    }

    /// Advances past bytes.
    pub(super) fn skip(&mut self, consumed: usize) {
        if let Some(reader) = &mut self.reader {
            reader.advance(consumed);
            self.position = reader.position();
        }
    }

    /// Marks a record as confirmed by Kafka.
    pub(super) fn confirm(&mut self, index: u32) {
        self.delivered += 1;
        self.confirmed.insert(index);
        self.segment.confirm(1);
    }

    /// Writes the confirmations to the disk, for the next process.
    pub(super) fn write(&mut self) -> io::Result<()> {
        self.confirmed.write()
    }

    /// Returns whether there is something to read.
    pub(super) fn has_unread(&self) -> bool {
        self.position.max(self.segment.start()) < self.segment.end()
    }

    /// Returns the number of records that wait for their delivery report.
    pub(super) fn in_flight(&self) -> u64 {
        self.sent.saturating_sub(self.delivered)
    }

    /// Returns the number of unconfirmed records. Of a segment of an earlier process, only records that were read
    /// count.
    pub(super) fn unconfirmed(&self) -> u64 {
        self.segment.records().max(self.sent).saturating_sub(self.delivered)
    }

    /// Returns when the oldest unconfirmed record was answered, in milliseconds since 1970 and up to [`TIMES_INTERVAL`]
    /// too early; `None` if no record is in flight and some were sent.
    pub(super) fn oldest_unconfirmed(&mut self) -> Option<i64> {
        if self.in_flight() == 0 {
            return self.segment.first_at().filter(|_| self.sent == 0 && self.has_unread());
        }
        let first = self.confirmed.first_missing();
        while self.times.get(1).is_some_and(|(index, _)| *index <= first) {
            self.times.pop_front();
        }
        self.times.front().map(|(_, at)| *at)
    }

    /// Returns whether all records have been confirmed for at least `delay`, so that the segment may be deleted.
    pub(super) fn is_complete(&mut self, delay: Duration) -> bool {
        // Sealed first, for the reason given in `next`.
        if !self.segment.is_sealed() || self.has_unread() || self.in_flight() > 0 {
            return false;
        }
        let since = *self.finished_at.get_or_insert_with(Instant::now);
        // The delay is for Kafka to sync the clicks to its disk, including those that an earlier process sent.
        self.confirmed.count() == 0 || since.elapsed() >= delay
    }
}

/// The fields of a record that [`Progress::advance`] needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadRecord {
    index: u32,
    at: i64,
    consumed: usize,
}

impl From<&Found<'_>> for ReadRecord {
    fn from(found: &Found<'_>) -> Self {
        Self { index: found.index, at: found.record.at, consumed: found.consumed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::tests::{Directory, append_at};

    /// Sends all records; returns the indexes of those marked as possible repeats and of the others.
    fn send_all(progress: &mut Progress) -> (Vec<u32>, Vec<u32>) {
        let (mut marked, mut unmarked) = (Vec::new(), Vec::new());
        loop {
            let (next, state) = progress.next().unwrap();
            match next {
                Next::Record(found) => {
                    match state {
                        RecordState::PossibleRepeat => marked.push(found.index),
                        RecordState::New => unmarked.push(found.index),
                        RecordState::Confirmed => {}
                    }
                    let record = ReadRecord::from(&found);
                    progress.advance(record, state != RecordState::Confirmed);
                }
                Next::Damage(bytes) => progress.skip(bytes),
                Next::End => return (marked, unmarked),
            }
        }
    }

    fn open(directory: &Directory) -> Spool {
        Spool::open(directory.path(), None).unwrap()
    }

    fn first(spool: &Spool) -> Progress {
        Progress::new(Arc::clone(&spool.segments()[0]), 0, spool)
    }

    #[test]
    fn a_segment_is_complete_when_sealed_read_and_confirmed() {
        let directory = Directory::new();
        let spool = open(&directory);
        append_at(&spool, 0);
        append_at(&spool, 0);
        let mut progress = first(&spool);
        assert!(progress.has_unread());
        assert_eq!(send_all(&mut progress), (vec![], vec![0, 1]));
        spool.seal();
        assert!(!progress.is_complete(Duration::ZERO));
        progress.confirm(1);
        assert!(!progress.is_complete(Duration::ZERO));
        progress.confirm(0);
        assert!(progress.is_complete(Duration::ZERO));
        assert!(!progress.is_complete(Duration::from_secs(60)));
    }

    #[test]
    fn a_growing_segment_is_not_complete() {
        let directory = Directory::new();
        let spool = open(&directory);
        append_at(&spool, 0);
        let mut progress = first(&spool);
        send_all(&mut progress);
        progress.confirm(0);
        assert!(!progress.is_complete(Duration::ZERO));
    }

    #[test]
    fn only_records_sent_before_a_restart_are_marked() {
        let directory = Directory::new();
        let spool = open(&directory);
        append_at(&spool, 0);
        append_at(&spool, 0);
        let mut progress = first(&spool);
        send_all(&mut progress);
        progress.confirm(0);
        progress.write().unwrap();
        append_at(&spool, 0);
        progress.restart().unwrap();
        assert_eq!(send_all(&mut progress), (vec![0, 1], vec![2]));
        assert_eq!(progress.in_flight(), 3);
        assert_eq!(send_all(&mut first(&spool)), (vec![], vec![0, 1, 2]), "also after a kill");
    }

    #[test]
    fn unconfirmed_records_of_an_earlier_process_are_sent_marked() {
        let directory = Directory::new();
        let spool = open(&directory);
        (0..5).for_each(|_| append_at(&spool, 0));
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
        assert!(progress.is_complete(Duration::ZERO));
        drop((progress, spool));

        let spool = open(&directory);
        let mut progress = first(&spool);
        assert_eq!(send_all(&mut progress), (vec![], vec![]));
        assert!(!progress.is_complete(Duration::from_secs(60)), "it was confirmed a moment ago");
        assert!(progress.is_complete(Duration::ZERO));
    }

    #[test]
    fn the_time_of_the_oldest_unconfirmed_record_is_known() {
        let directory = Directory::new();
        let spool = open(&directory);
        (1..=5).for_each(|second| append_at(&spool, second * 1_000));
        let mut progress = first(&spool);
        assert_eq!(progress.oldest_unconfirmed(), Some(1_000));
        send_all(&mut progress);
        assert_eq!(progress.oldest_unconfirmed(), Some(1_000));
        [0, 1, 3].into_iter().for_each(|index| progress.confirm(index));
        assert_eq!(progress.oldest_unconfirmed(), Some(3_000));
        [2, 4].into_iter().for_each(|index| progress.confirm(index));
        assert_eq!(progress.oldest_unconfirmed(), None);
        append_at(&spool, 6_000);
        send_all(&mut progress);
        assert_eq!(progress.oldest_unconfirmed(), Some(6_000));
    }
}
