//! A segment: one file of the spool, shared by the threads that append to it and the thread that reads it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use crate::spool::header;
use crate::spool::record::{Encoded, MAX_LEN};
use crate::spool::spare::Spare;

/// The largest size of a segment.
pub(super) const MAX_BYTES: u64 = 8 * 1024 * 1024;

/// The smallest size of a segment.
pub(super) const MIN_BYTES: u64 = 256 * 1024;

// Every record fits into every segment.
const _: () = assert!(header::LEN + MAX_LEN <= MIN_BYTES as usize);

/// The extension of segment files.
pub(super) const EXTENSION: &str = "clicks";

/// An unknown time.
const NEVER: i64 = i64::MAX;

/// A segment: a file of records that is appended to, then sealed, then deleted.
#[derive(Debug)]
pub struct Segment {
    number: u64,
    path: PathBuf,
    /// The segment's random number; unknown if the header is damaged.
    nonce: Option<u64>,
    /// Where the first record begins; 0 if the header is damaged, because records may begin anywhere then.
    start: u64,
    /// Where the last complete record ends. Zeroes or the rest of a failed write follow.
    end: AtomicU64,
    /// The file's size on the disk, in bytes.
    bytes: AtomicU64,
    records: AtomicU64,
    confirmed: AtomicU64,
    first_at: AtomicI64,
    sealed: AtomicBool,
    is_recovered: bool,
}

impl Segment {
    /// Returns the segment's number. Newer segments have higher numbers.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns where the first record begins.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns where the last record ends.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Returns the file's size on the disk, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how many records this process appended.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Returns when the first click was answered, in milliseconds since 1970; `None` if unknown or without clicks.
    pub fn first_at(&self) -> Option<i64> {
        Some(self.first_at.load(Ordering::Relaxed)).filter(|at| *at != NEVER)
    }

    /// Returns whether the segment is complete: nothing will be appended.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Returns whether an earlier process wrote the segment and may have sent any of its records.
    pub fn is_recovered(&self) -> bool {
        self.is_recovered
    }

    /// Counts `count` more records as confirmed by Kafka.
    pub fn confirm(&self, count: u64) {
        self.confirmed.fetch_add(count, Ordering::Relaxed);
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn nonce(&self) -> Option<u64> {
        self.nonce
    }

    pub(super) fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    /// Returns the number in the name of a segment's file.
    pub(super) fn number_of(path: &Path) -> Option<u64> {
        let named = path.extension().is_some_and(|extension| extension == EXTENSION);
        // u64::MAX is excluded, because there must always be a next number.
        named.then(|| path.file_stem()?.to_str()?.parse().ok()).flatten().filter(|number| *number < u64::MAX)
    }

    /// Creates a sealed segment from a file that an earlier process wrote, with its records in `records`.
    pub(super) fn recovered(
        number: u64,
        path: PathBuf,
        nonce: Option<u64>,
        records: Range<u64>,
        bytes: u64,
        first_at: Option<i64>,
    ) -> Self {
        Self {
            number,
            path,
            nonce,
            start: records.start,
            end: AtomicU64::new(records.end),
            bytes: AtomicU64::new(bytes),
            records: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            first_at: AtomicI64::new(first_at.unwrap_or(NEVER)),
            sealed: AtomicBool::new(true),
            is_recovered: true,
        }
    }
}

/// The segment that clicks are appended to.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) segment: Arc<Segment>,
    pub(super) file: Arc<File>,
    pub(super) since: Instant,
    /// The position up to which the file has been synced.
    pub(super) synced: u64,
}

impl Active {
    /// Turns a prepared file into the active segment.
    pub(super) fn begin(spare: Spare, directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!("{:020}.{EXTENSION}", spare.number()));
        let (number, nonce, bytes) = (spare.number(), spare.nonce(), spare.bytes());
        let file = spare.rename(&path)?;
        let segment = Segment {
            number,
            path,
            nonce: Some(nonce),
            start: header::LEN as u64,
            end: AtomicU64::new(header::LEN as u64),
            bytes: AtomicU64::new(bytes),
            records: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            first_at: AtomicI64::new(NEVER),
            sealed: AtomicBool::new(false),
            is_recovered: false,
        };
        Ok(Self { segment: segment.into(), file: file.into(), since: Instant::now(), synced: 0 })
    }

    /// Returns whether the record fits into the rest of the file.
    pub(super) fn has_room(&self, record: &Encoded) -> bool {
        self.segment.end() + record.len() as u64 <= self.segment.bytes()
    }

    pub(super) fn has_records(&self) -> bool {
        self.segment.records() > 0
    }

    /// Returns whether Kafka has confirmed any of the segment's records.
    pub(super) fn has_confirmed_records(&self) -> bool {
        self.segment.confirmed.load(Ordering::Relaxed) > 0
    }

    /// Appends a record completely or not at all.
    pub(super) fn append(&self, record: &mut Encoded) -> io::Result<()> {
        let segment = &self.segment;
        let (end, records) = (segment.end(), segment.records());
        let index = u32::try_from(records).map_err(io::Error::other)?;
        let at = record.at();
        let bytes = record.with_index(index);
        // After a failed write `end` is unchanged, so the partial bytes are ignored.
        self.file.write_all_at(bytes, end)?;
        if index == 0 {
            segment.first_at.store(at, Ordering::Relaxed);
        }
        segment.records.store(records + 1, Ordering::Relaxed);
        segment.end.store(end + bytes.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Truncates the file after its last record and returns the number of bytes freed.
    pub(super) fn truncate(&self) -> u64 {
        let (end, bytes) = (self.segment.end(), self.segment.bytes());
        // If truncating fails, the file keeps its size and still counts in full.
        if end >= bytes || self.file.set_len(end).is_err() {
            return 0;
        }
        self.segment.bytes.store(end, Ordering::Relaxed);
        bytes - end
    }
}
