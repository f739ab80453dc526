//! Clicks on the local disk, from before the visitor is answered until Kafka has confirmed them.
//!
//! A directory of numbered segment files. Clicks are appended to the newest one with a plain write, which the
//! kernel keeps when this process is killed; [`Spool::sync`], called at short intervals, carries them over a power
//! loss. [`crate::publish`] reads the segments in order, notes what Kafka has confirmed, and deletes those that
//! Kafka has in full. What a killed process left behind is read by the next one.
//!
//! `docs/spool.md` says what this promises.

pub mod command;
mod confirmed;
mod header;
pub mod inspect;
mod reader;
pub mod record;
mod segment;
mod size;
mod spare;
mod writer;

use std::{
    collections::VecDeque,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::Thread,
    time::Duration,
};

use confirmed::Boot;
pub use confirmed::Confirmed;
pub use reader::{Next, Reader};
use record::Encoded;
use segment::Examined;
pub use segment::Segment;
pub use size::MIN_BYTES;
use size::Size;
use spare::Spare;
pub use writer::Refused;
use writer::Writer;

/// Largest size of a segment.
const MAX_SEGMENT_BYTES: u64 = 8 * 1024 * 1024;

/// Smallest size of a segment.
const MIN_SEGMENT_BYTES: u64 = 256 * 1024;

/// The file whose lock says that a process uses the directory.
const LOCK_FILE: &str = "lock";

/// Why a spool cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Two processes would delete each other's clicks.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// The directory cannot be made, read or written.
    #[error("cannot use {path}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

/// The spool of one edge.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    /// Held open for its lock, which ends with the process however that ends.
    _lock: File,
    boot: Boot,
    size: Size,
    writer: Mutex<Writer>,
    /// All segments that exist, oldest first.
    segments: Mutex<VecDeque<Arc<Segment>>>,
    left_alone: Vec<LeftAlone>,
    /// The thread that reads the segments, and whether it waits for one to grow.
    reader: OnceLock<Thread>,
    reader_waits: AtomicBool,
}

/// A file that is named like a segment and is none that this build reads. It is neither sent nor deleted.
#[derive(Debug)]
pub struct LeftAlone {
    /// The file.
    pub path: PathBuf,
    /// What is the matter with it.
    pub reason: String,
    /// What it takes on the disk, in bytes.
    pub bytes: u64,
}

impl Spool {
    /// Opens a directory, making it if need be, and finds what a former process left in it.
    ///
    /// The spool takes up to `max_bytes` of the disk, or without that a share of what is free now.
    ///
    /// # Errors
    /// When another process uses it, or it cannot be written.
    pub fn open(directory: &Path, max_bytes: Option<u64>) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: directory.to_owned(), source };
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(directory.join(LOCK_FILE))
            .map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => OpenError::InUse(directory.to_owned()),
            TryLockError::Error(source) => failed(source),
        })?;
        let Contents { segments, left_alone, next_number } = contents(directory).map_err(failed)?;
        let used = segments.iter().map(|segment| segment.bytes()).sum::<u64>()
            + left_alone.iter().map(|file| file.bytes).sum::<u64>();
        Ok(Self {
            directory: directory.to_owned(),
            _lock: lock,
            boot: Boot::current(),
            size: Size::new(directory, max_bytes, used).map_err(failed)?,
            writer: Mutex::new(Writer::new(next_number)),
            segments: Mutex::new(segments),
            left_alone,
            reader: OnceLock::new(),
            reader_waits: AtomicBool::new(false),
        })
    }

    /// Appends an encoded record, whole or not at all.
    ///
    /// The kernel has it when this returns. It is a write into the page cache, about a microsecond, so callers on
    /// a runtime's threads need not move it elsewhere.
    ///
    /// # Errors
    /// When the spool is full, or the disk refuses the record. Until [`prepare`](Self::prepare) succeeds, further
    /// records are refused at once where this one would have needed a new segment.
    pub fn append(&self, record: &mut Encoded) -> Result<(), Refused> {
        self.append_to(&mut self.writer(), record)?;
        if self.reader_waits.load(Ordering::SeqCst)
            && self.reader_waits.swap(false, Ordering::SeqCst)
            && let Some(reader) = self.reader.get()
        {
            reader.unpark();
        }
        Ok(())
    }

    /// Returns the segments that exist, oldest first.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments_from(0)
    }

    /// Returns the segments from that number on, oldest first.
    pub fn segments_from(&self, number: u64) -> Vec<Arc<Segment>> {
        let list = self.list();
        let first = list.partition_point(|segment| segment.number() < number);
        list.range(first..).cloned().collect()
    }

    /// Returns the files that were found at the start and are not touched.
    pub fn left_alone(&self) -> &[LeftAlone] {
        &self.left_alone
    }

    /// Returns how much of the disk the spool takes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.size.used()
    }

    /// Returns how much of the disk it may take, in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.size.max()
    }

    /// Returns which records of a segment are known to be confirmed.
    pub fn confirmed(&self, segment: &Segment) -> Confirmed {
        Confirmed::of(segment, &self.boot)
    }

    /// Deletes a sealed segment.
    ///
    /// # Errors
    /// When the file cannot be removed. It goes on to count, and the next process will find it.
    pub fn delete(&self, segment: &Segment) -> io::Result<()> {
        self.list().retain(|other| other.number() != segment.number());
        match fs::remove_file(segment.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => self.size.release(segment.bytes()),
        }
        // Last: without its segment it is nothing, but a segment without it would be sent again.
        confirmed::remove_beside(segment.path())
    }

    /// Waits until something is appended or the time is over; for the one thread that reads the segments.
    ///
    /// `news` says whether there is something to read after all; it is asked once the appender knows of the wait,
    /// so that nothing is missed.
    pub fn wait(&self, timeout: Duration, news: impl FnOnce() -> bool) {
        self.reader.get_or_init(std::thread::current);
        self.reader_waits.store(true, Ordering::SeqCst);
        if !news() {
            std::thread::park_timeout(timeout);
        }
        self.reader_waits.store(false, Ordering::SeqCst);
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Arc<Segment>>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Contents {
    segments: VecDeque<Arc<Segment>>,
    left_alone: Vec<LeftAlone>,
    next_number: u64,
}

/// Finds what a former process left in a directory, and removes what it never used.
fn contents(directory: &Path) -> io::Result<Contents> {
    let (mut segments, mut left_alone, mut next_number) = (Vec::new(), Vec::new(), 0);
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Some(number) = Segment::number_of(&path) else {
            Spare::remove_if_one(&path);
            confirmed::remove_if_alone(&path);
            continue;
        };
        // Also past what is left alone: its name is taken.
        next_number = next_number.max(number + 1);
        let reason = match Segment::examine(&path, number) {
            Ok(Examined::Segment(segment)) => {
                segments.push(Arc::new(segment));
                continue;
            }
            Ok(Examined::Unused) => match fs::remove_file(&path) {
                Ok(()) => continue,
                Err(error) => format!("it is empty and cannot be removed: {error}"),
            },
            Ok(Examined::LeftAlone(reason)) => reason,
            // The others need not wait for this one.
            Err(error) => format!("it cannot be read: {error}"),
        };
        left_alone.push(LeftAlone { bytes: size::of(&path), path, reason });
    }
    segments.sort_by_key(|segment| segment.number());
    Ok(Contents { segments: segments.into(), left_alone, next_number })
}

#[cfg(test)]
pub(crate) mod tests;
