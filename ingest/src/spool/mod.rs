//! Stores clicks on the local disk from before the visitor is answered until Kafka has confirmed them.
//!
//! A spool is a directory of numbered segment files. The edge appends clicks to the newest segment with a plain write,
//! which survives a kill of this process. [`Spool::sync`], called at short intervals, makes them survive a power loss.
//! [`crate::publish`] reads the segments in order, records what Kafka has confirmed, and deletes segments that are
//! confirmed completely. A new process reads the segments that a killed one left.
//!
//! `docs/guides/edge.md` describes the guarantees.

mod append;
pub mod command;
mod confirmed;
mod header;
pub mod inspect;
mod reader;
pub mod record;
mod recover;
mod segment;
mod size;
mod spare;
mod writer;

use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

pub use self::confirmed::Confirmed;
pub use self::reader::{Next, Reader};
pub use self::recover::UnrecognizedFile;
pub use self::segment::Segment;
pub use self::size::MIN_BYTES;
pub use self::writer::AppendError;

use parking_lot::Mutex;

use crate::spool::confirmed::Boot;
use crate::spool::record::Encoded;
use crate::spool::recover::Files;
use crate::spool::size::Size;
use crate::spool::writer::Writer;

/// The file that a process locks while it uses the directory.
const LOCK_FILE: &str = "lock";

/// Why a spool cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses the spool. Two processes would delete each other's clicks.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// The directory cannot be created, read or written.
    #[error("cannot use {path}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// The spool of one edge.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    /// Kept open for its lock, which the kernel releases when the process ends.
    _lock: File,
    boot: Boot,
    size: Size,
    writer: Mutex<Writer>,
    /// All segments that exist, oldest first.
    segments: Mutex<VecDeque<Arc<Segment>>>,
    unrecognized: Vec<UnrecognizedFile>,
    /// The thread that reads the segments.
    reader: OnceLock<Thread>,
    /// Whether the reading thread waits for a segment to grow.
    reader_waits: AtomicBool,
}

impl Spool {
    /// Opens a directory, creating it if necessary, and finds the segments that an earlier process left in it.
    ///
    /// The spool takes up to `max_bytes` of the disk, by default a share of the space that is free now.
    ///
    /// # Errors
    /// When another process uses the directory, or it cannot be written.
    pub fn open(directory: &Path, max_bytes: Option<u64>) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: directory.to_owned(), source };
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(directory.join(LOCK_FILE))
            .map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => OpenError::InUse(directory.to_owned()),
            TryLockError::Error(source) => failed(source),
        })?;
        let Files { segments, unrecognized, next_number } = recover::find(directory).map_err(failed)?;
        let used = segments.iter().map(Segment::bytes).sum::<u64>()
            + unrecognized.iter().map(|file| file.bytes).sum::<u64>();
        Ok(Self {
            directory: directory.to_owned(),
            _lock: lock,
            boot: Boot::current(),
            size: Size::new(directory, max_bytes, used).map_err(failed)?,
            writer: Mutex::new(Writer::new(next_number)),
            segments: Mutex::new(segments.into_iter().map(Arc::new).collect()),
            unrecognized,
            reader: OnceLock::new(),
            reader_waits: AtomicBool::new(false),
        })
    }

    /// Appends an encoded record completely or not at all.
    ///
    /// The record survives a kill of this process once this returns. It is a write into the page cache that takes about
    /// a microsecond, so an async task may call it.
    ///
    /// # Errors
    /// When the spool is full or the disk fails. Until [`prepare`](Self::prepare) succeeds, further records that need a
    /// new segment are rejected immediately.
    pub fn append(&self, record: &mut Encoded) -> Result<(), AppendError> {
        self.append_to(&mut self.writer.lock(), record)?;
        if self.reader_waits.load(Ordering::SeqCst)
            && self.reader_waits.swap(false, Ordering::SeqCst)
            && let Some(reader) = self.reader.get()
        {
            reader.unpark();
        }
        Ok(())
    }

    /// Returns all segments, oldest first.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments_from(0)
    }

    /// Returns the segments with this number or a higher one, oldest first.
    pub fn segments_from(&self, number: u64) -> Vec<Arc<Segment>> {
        let list = self.segments.lock();
        let first = list.partition_point(|segment| segment.number() < number);
        list.range(first..).cloned().collect()
    }

    /// Returns the files that were named like segments at the start but cannot be read.
    pub fn unrecognized(&self) -> &[UnrecognizedFile] {
        &self.unrecognized
    }

    /// Returns the spool's size on the disk, in bytes.
    pub fn bytes(&self) -> u64 {
        self.size.used()
    }

    /// Returns the limit of the spool's size on the disk, in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.size.max()
    }

    /// Returns the stored confirmations of a segment's records.
    pub fn confirmed(&self, segment: &Segment) -> Confirmed {
        Confirmed::read(segment, &self.boot)
    }

    /// Deletes a sealed segment.
    ///
    /// # Errors
    /// When the file cannot be removed. It still counts toward the size, and the next process finds it.
    pub fn delete(&self, segment: &Segment) -> io::Result<()> {
        self.segments.lock().retain(|other| other.number() != segment.number());
        match fs::remove_file(segment.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => self.size.release(segment.bytes()),
        }
        // Last, because a segment without its confirmations would be sent again after a kill.
        confirmed::remove(segment)
    }

    /// Waits until a record is appended or the timeout ends. Only the thread that reads the segments may call it.
    ///
    /// `has_unread` returns whether there is something to read. It is called after the wait has been announced to
    /// [`append`](Self::append), so that no record is missed.
    pub fn wait(&self, timeout: Duration, has_unread: impl FnOnce() -> bool) {
        self.reader.get_or_init(std::thread::current);
        self.reader_waits.store(true, Ordering::SeqCst);
        if !has_unread() {
            std::thread::park_timeout(timeout);
        }
        self.reader_waits.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
pub(crate) mod tests;
