//! One file of the spool, shared by the one who appends to it and the one who reads it.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

/// What segment files end in.
const EXTENSION: &str = "clicks";

/// A segment: a file of records that is appended to, then sealed, then deleted.
#[derive(Debug)]
pub struct Segment {
    number: u64,
    path: PathBuf,
    /// Where the last whole record ends. The file may be longer: what a failed write left is overwritten.
    end: AtomicU64,
    records: AtomicU64,
    sealed: AtomicBool,
    /// Whether a former process wrote it, which may have sent any of it.
    left_behind: bool,
}

impl Segment {
    /// Returns the segment's place in the spool's order.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns how many bytes of it there are to read.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Returns how many records were appended; 0 for one that a former process wrote.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Returns whether nothing will be appended any more.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Returns whether a former process wrote it.
    pub fn is_left_behind(&self) -> bool {
        self.left_behind
    }

    /// Opens the file for reading.
    pub fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    /// Finds the segment that a file is, if it is one.
    pub(super) fn left_behind(path: PathBuf) -> io::Result<Option<Self>> {
        let number = (path.extension().is_some_and(|extension| extension == EXTENSION))
            .then(|| path.file_stem()?.to_str()?.parse().ok())
            .flatten();
        let Some(number) = number else { return Ok(None) };
        let end = path.metadata()?.len();
        Ok(Some(Self {
            number,
            path,
            end: AtomicU64::new(end),
            records: AtomicU64::new(0),
            sealed: AtomicBool::new(true),
            left_behind: true,
        }))
    }

    fn new(directory: &Path, number: u64) -> Self {
        Self {
            number,
            path: directory.join(format!("{number:020}.{EXTENSION}")),
            end: AtomicU64::new(0),
            records: AtomicU64::new(0),
            sealed: AtomicBool::new(false),
            left_behind: false,
        }
    }
}

/// The segment that clicks are appended to.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) segment: Arc<Segment>,
    pub(super) file: Arc<File>,
    pub(super) since: Instant,
    /// What was handed to the disk, up to here.
    pub(super) synced: u64,
}

impl Active {
    /// Creates the file of a new segment.
    pub(super) fn create(directory: &Path, number: u64) -> io::Result<Self> {
        let segment = Segment::new(directory, number);
        let file = OpenOptions::new().write(true).create_new(true).open(&segment.path)?;
        Ok(Self { segment: segment.into(), file: file.into(), since: Instant::now(), synced: 0 })
    }

    /// Appends a record, whole or not at all.
    pub(super) fn append(&self, record: &[u8]) -> io::Result<()> {
        let end = self.segment.end();
        // A write that fails halfway moves nothing: the next one begins at the same place.
        self.file.write_all_at(record, end)?;
        self.segment.records.fetch_add(1, Ordering::Relaxed);
        self.segment.end.store(end + record.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Finds out whether the disk takes `bytes` more, without keeping them.
    pub(super) fn probe(&self, bytes: usize) -> io::Result<()> {
        let end = self.segment.end();
        let written = self.file.write_all_at(&vec![0; bytes], end);
        self.file.set_len(end)?;
        written
    }
}
