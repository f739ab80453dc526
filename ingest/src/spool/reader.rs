//! Reads a segment from its beginning. The segment may still grow.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::spool::record::{self, Found, MAX_LEN};
use crate::spool::segment::Segment;

/// How many bytes are read at once; more than the largest record.
const WINDOW: usize = 1024 * 1024;

/// What follows at the position of a [`Reader`].
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// A record, possibly after damaged bytes.
    Record(Found<'a>),
    /// This many bytes without a record.
    Damage(usize),
    /// Nothing yet.
    End,
}

/// Reads one segment.
#[derive(Debug)]
pub struct Reader {
    file: File,
    /// Bytes of the file from `at` on.
    buffer: Vec<u8>,
    /// How many bytes of the buffer have been consumed.
    consumed: usize,
    at: u64,
}

impl Reader {
    /// Starts at the first record.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn new(segment: &Segment) -> io::Result<Self> {
        Ok(Self { file: segment.open()?, buffer: Vec::new(), consumed: 0, at: segment.start() })
    }

    /// Returns what follows before `end`, the end of the last complete record of the segment. Does not advance.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next(&mut self, end: u64) -> io::Result<Next<'_>> {
        let left = end.saturating_sub(self.position());
        if left == 0 {
            return Ok(Next::End);
        }
        let buffered = self.buffer.len() - self.consumed;
        if buffered < MAX_LEN && (buffered as u64) < left {
            self.fill(left)?;
        }
        let bytes = &self.buffer[self.consumed..];
        // A record that begins later may reach beyond the buffer, unless the segment ends there.
        let limit = if bytes.len() as u64 == left { bytes.len() } else { bytes.len() - MAX_LEN + 1 };
        Ok(record::find(bytes, limit).map_or(Next::Damage(limit), Next::Record))
    }

    /// Advances past a record or damage of `consumed` bytes.
    pub fn advance(&mut self, consumed: usize) {
        self.consumed += consumed;
    }

    /// Returns the reader's position in the file.
    pub fn position(&self) -> u64 {
        self.at + self.consumed as u64
    }

    fn fill(&mut self, left: u64) -> io::Result<()> {
        let len = usize::try_from(left).map_or(WINDOW, |left| left.min(WINDOW));
        self.at = self.position();
        self.consumed = 0;
        self.buffer.resize(len, 0);
        let read = self.file.read_exact_at(&mut self.buffer, self.at);
        if read.is_err() {
            // The buffer may hold only part of the file's content.
            self.buffer.clear();
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::record::Record;
    use crate::spool::tests::Directory;
    use crate::spool::{Spool, header};

    /// Reads a segment to its end and returns the lengths of the values and the number of damaged bytes.
    fn lengths(segment: &Segment) -> (Vec<usize>, usize) {
        let mut reader = Reader::new(segment).unwrap();
        let (mut lengths, mut damaged) = (Vec::new(), 0);
        loop {
            let consumed = match reader.next(segment.end()).unwrap() {
                Next::Record(found) => {
                    lengths.push(found.record.value.len());
                    damaged += found.skipped;
                    found.consumed
                }
                Next::Damage(bytes) => {
                    damaged += bytes;
                    bytes
                }
                Next::End => return (lengths, damaged),
            };
            reader.advance(consumed);
        }
    }

    fn append(spool: &Spool, len: usize) {
        let value = vec![b'x'; len];
        spool
            .append(&mut Record { at: 0, partition: 0, key: b"key", value: &value }.encode().unwrap())
            .unwrap();
    }

    #[test]
    fn records_across_window_borders_are_read_completely() {
        let directory = Directory::new();
        let spool = Spool::open(directory.path(), Some(1 << 30)).unwrap();
        // More than three windows in total, so that records lie across the borders.
        let written: Vec<usize> = (0..60).map(|number| 1_000 + number * 31_777 % 120_000).collect();
        for len in &written {
            append(&spool, *len);
        }
        assert!(spool.segments()[0].end() > 3 * WINDOW as u64);
        assert_eq!(lengths(&spool.segments()[0]), (written, 0));
    }

    #[test]
    fn a_reader_continues_when_the_segment_grows() {
        let directory = Directory::new();
        let spool = Spool::open(directory.path(), None).unwrap();
        append(&spool, 10);
        let segment = &spool.segments()[0];
        let mut reader = Reader::new(segment).unwrap();
        for index in 0..3 {
            let Next::Record(found) = reader.next(segment.end()).unwrap() else {
                panic!("a record was appended");
            };
            assert_eq!((found.index, found.skipped), (index, 0));
            let consumed = found.consumed;
            reader.advance(consumed);
            assert_eq!(reader.next(segment.end()).unwrap(), Next::End);
            append(&spool, 10);
        }
    }

    #[test]
    fn damage_longer_than_a_window_is_skipped() {
        let directory = Directory::new();
        let spool = Spool::open(directory.path(), Some(1 << 30)).unwrap();
        let middle = 2 * WINDOW / 100_000 + 1;
        (0..middle + 2).for_each(|_| append(&spool, 100_000));
        let path = spool.segments()[0].path().to_owned();
        spool.seal();
        drop(spool);
        let mut bytes = std::fs::read(&path).unwrap();
        let len = (bytes.len() - header::LEN) / (middle + 2);
        bytes[header::LEN + len..][..middle * len].fill(b'c');
        bytes.truncate(bytes.len() - 1);
        std::fs::write(&path, bytes).unwrap();
        let spool = Spool::open(directory.path(), Some(1 << 30)).unwrap();
        assert_eq!(lengths(&spool.segments()[0]), (vec![100_000], middle * len + len - 1));
    }
}
