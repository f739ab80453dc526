//! How far one segment has come on its way to Kafka.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::spool::{Next, Reader, Segment};

/// A segment, where it is read, and how many of its records are under way.
#[derive(Debug)]
pub(super) struct Progress {
    segment: Arc<Segment>,
    /// Open only while there is something to read.
    reader: Option<Reader>,
    at: u64,
    /// What begins before this may have reached Kafka already.
    again_below: u64,
    sent: u64,
    confirmed: u64,
    confirmed_since: Option<Instant>,
}

impl Progress {
    pub(super) fn new(segment: Arc<Segment>) -> Self {
        let again_below = if segment.is_left_behind() { u64::MAX } else { 0 };
        Self { segment, reader: None, at: 0, again_below, sent: 0, confirmed: 0, confirmed_since: None }
    }

    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Begins anew, with another producer.
    pub(super) fn restart(&mut self) {
        self.again_below = self.again_below.max(self.at);
        self.reader = None;
        self.at = 0;
        self.sent = 0;
        self.confirmed = 0;
        self.confirmed_since = None;
    }

    /// Returns what comes next, and whether it may have reached Kafka already.
    pub(super) fn next(&mut self) -> io::Result<(Next<'_>, bool)> {
        // Asked before the end, or a last record appended in between would be left out.
        let sealed = self.segment.is_sealed();
        let end = self.segment.end();
        if self.at >= end {
            if sealed {
                self.reader = None;
            }
            return Ok((Next::End, false));
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(Reader::new(&self.segment)?),
        };
        Ok((reader.next(end)?, self.at < self.again_below))
    }

    /// Passes a record that is under way now.
    pub(super) fn sent(&mut self, consumed: usize) {
        self.sent += 1;
        self.skip(consumed);
    }

    /// Passes bytes that are no record.
    pub(super) fn skip(&mut self, consumed: usize) {
        self.at += consumed as u64;
        if let Some(reader) = &mut self.reader {
            reader.advance(consumed);
        }
    }

    /// Notes that Kafka has so many more records.
    pub(super) fn confirm(&mut self, count: u64) {
        self.confirmed += count;
    }

    /// Returns whether there is something to read.
    pub(super) fn has_news(&self) -> bool {
        self.at < self.segment.end()
    }

    /// Returns how many records wait for their delivery report.
    pub(super) fn under_way(&self) -> u64 {
        self.sent.saturating_sub(self.confirmed)
    }

    /// Returns how many records are not confirmed; for what a former process left only those that were read.
    pub(super) fn waiting(&self) -> u64 {
        self.segment.records().max(self.sent).saturating_sub(self.confirmed)
    }

    /// Returns whether Kafka has had all of it for `rest`, so that it may be deleted.
    pub(super) fn is_over(&mut self, rest: Duration) -> bool {
        // Sealed first, for the reason given in `next`.
        if !self.segment.is_sealed() || self.has_news() || self.under_way() > 0 {
            return false;
        }
        let since = *self.confirmed_since.get_or_insert_with(Instant::now);
        self.sent == 0 || since.elapsed() >= rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::{Spool, record::Record, tests::Directory};

    /// Sends everything there is; returns how many records were marked, and how many not.
    fn send_all(progress: &mut Progress) -> (u32, u32) {
        let (mut marked, mut unmarked) = (0, 0);
        loop {
            match progress.next().unwrap() {
                (Next::Record(found), again) => {
                    if again {
                        marked += 1;
                    } else {
                        unmarked += 1;
                    }
                    let consumed = found.consumed;
                    progress.sent(consumed);
                }
                (Next::Damage(bytes), _) => progress.skip(bytes),
                (Next::End, _) => return (marked, unmarked),
            }
        }
    }

    fn append(spool: &Spool) {
        spool.append(&Record { partition: 0, key: b"k", value: b"{}" }.encode().unwrap()).unwrap();
    }

    #[test]
    fn a_segment_is_over_only_when_it_is_sealed_read_and_confirmed() {
        let directory = Directory::new();
        let spool = Spool::open(directory.path()).unwrap();
        append(&spool);
        append(&spool);
        let mut progress = Progress::new(Arc::clone(&spool.segments()[0]));
        assert!(progress.has_news());
        assert_eq!(send_all(&mut progress), (0, 2));
        spool.seal();
        assert!(!progress.is_over(Duration::ZERO));
        progress.confirm(1);
        assert!(!progress.is_over(Duration::ZERO));
        progress.confirm(1);
        assert!(progress.is_over(Duration::ZERO));
        assert!(!progress.is_over(Duration::from_secs(60)));
    }

    #[test]
    fn a_segment_that_grows_is_not_over() {
        let directory = Directory::new();
        let spool = Spool::open(directory.path()).unwrap();
        append(&spool);
        let mut progress = Progress::new(Arc::clone(&spool.segments()[0]));
        send_all(&mut progress);
        progress.confirm(1);
        assert!(!progress.is_over(Duration::ZERO));
    }

    #[test]
    fn only_what_was_sent_before_is_marked_when_a_segment_begins_anew() {
        let directory = Directory::new();
        let spool = Spool::open(directory.path()).unwrap();
        append(&spool);
        append(&spool);
        let mut progress = Progress::new(Arc::clone(&spool.segments()[0]));
        send_all(&mut progress);
        progress.confirm(1);
        append(&spool);
        progress.restart();
        assert_eq!(send_all(&mut progress), (2, 1));
        assert_eq!(progress.under_way(), 3);
    }

    #[test]
    fn everything_that_was_left_behind_is_marked() {
        let directory = Directory::new();
        append(&Spool::open(directory.path()).unwrap());
        let spool = Spool::open(directory.path()).unwrap();
        let mut progress = Progress::new(Arc::clone(&spool.segments()[0]));
        assert_eq!(send_all(&mut progress), (1, 0));
    }
}
