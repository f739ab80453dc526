//! Clicks on the local disk, from before the visitor is answered until Kafka has confirmed them.
//!
//! A directory of numbered segment files. Clicks are appended to the newest one with a plain write, which the
//! kernel keeps when this process is killed; [`Spool::sync`], called at short intervals, carries them over a power
//! loss. [`crate::publish`] reads the segments in order and deletes those that Kafka has in full. What a killed
//! process left behind is read by the next one.

mod reader;
pub mod record;
mod segment;

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

pub use reader::{Next, Reader};
use segment::Active;
pub use segment::Segment;

/// How many bytes a segment holds before the next one begins.
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;

/// How long a segment is appended to at most, so that little is sent again after a kill.
const SEGMENT_AGE: Duration = Duration::from_secs(5);

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
    writer: Mutex<Writer>,
    /// All segments that exist, oldest first.
    segments: Mutex<VecDeque<Arc<Segment>>>,
    /// The thread that reads the segments, and whether it waits for one to grow.
    reader: OnceLock<Thread>,
    reader_waits: AtomicBool,
}

#[derive(Debug)]
struct Writer {
    active: Option<Active>,
    next_number: u64,
    /// Sealed since the last sync.
    unsynced: Vec<Arc<File>>,
    /// Whether a file was made since the last sync.
    created: bool,
}

impl Spool {
    /// Opens a directory, making it if need be, and finds what a former process left in it.
    ///
    /// # Errors
    /// When another process uses it, or it cannot be written.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
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
        let segments = left_behind(directory).map_err(failed)?;
        let next_number = segments.back().map_or(0, |newest| newest.number() + 1);
        Ok(Self {
            directory: directory.to_owned(),
            _lock: lock,
            writer: Mutex::new(Writer { active: None, next_number, unsynced: Vec::new(), created: false }),
            segments: Mutex::new(segments),
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
    /// When the disk refuses it, for example because it is full.
    pub fn append(&self, record: &[u8]) -> io::Result<()> {
        let mut writer = self.writer();
        if writer.active.as_ref().is_some_and(|active| active.segment.end() >= SEGMENT_BYTES) {
            writer.seal();
        }
        self.active(&mut writer)?.append(record)?;
        drop(writer);
        if self.reader_waits.load(Ordering::SeqCst)
            && self.reader_waits.swap(false, Ordering::SeqCst)
            && let Some(reader) = self.reader.get()
        {
            reader.unpark();
        }
        Ok(())
    }

    /// Finds out whether the disk takes clicks again after it refused one.
    ///
    /// # Errors
    /// When it does not.
    pub fn probe(&self) -> io::Result<()> {
        self.active(&mut self.writer())?.probe(record::MAX_LEN)
    }

    /// Brings everything appended so far onto the disk, and ends a segment that has become old.
    ///
    /// # Errors
    /// When the disk fails: what was appended since the last call may not survive a power loss then.
    pub fn sync(&self) -> io::Result<()> {
        let mut writer = self.writer();
        if writer.active.as_ref().is_some_and(|active| active.since.elapsed() >= SEGMENT_AGE) {
            writer.seal_if_used();
        }
        let mut files = std::mem::take(&mut writer.unsynced);
        if let Some(active) = &mut writer.active {
            let end = active.segment.end();
            if end != active.synced {
                active.synced = end;
                files.push(Arc::clone(&active.file));
            }
        }
        let created = std::mem::take(&mut writer.created);
        // Appending must not wait for the disk.
        drop(writer);

        for file in files {
            file.sync_data()?;
        }
        if created {
            // A file survives only if its name does.
            File::open(&self.directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Ends the current segment, so that it can be deleted once it is confirmed.
    pub fn seal(&self) {
        self.writer().seal_if_used();
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

    /// Deletes a sealed segment.
    ///
    /// # Errors
    /// When the file cannot be removed; the next process will send its clicks again.
    pub fn delete(&self, segment: &Segment) -> io::Result<()> {
        self.list().retain(|other| other.number() != segment.number());
        fs::remove_file(segment.path())
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

    /// Returns the segment to append to, made if there is none.
    fn active<'a>(&self, writer: &'a mut Writer) -> io::Result<&'a Active> {
        match &mut writer.active {
            Some(active) => Ok(active),
            none => {
                let active = Active::create(&self.directory, writer.next_number)?;
                writer.next_number += 1;
                writer.created = true;
                self.list().push_back(Arc::clone(&active.segment));
                Ok(none.insert(active))
            }
        }
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Arc<Segment>>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    fn seal_if_used(&mut self) {
        if self.active.as_ref().is_some_and(|active| active.segment.end() > 0) {
            self.seal();
        }
    }

    fn seal(&mut self) {
        if let Some(active) = self.active.take() {
            active.segment.seal();
            self.unsynced.push(active.file);
        }
    }
}

/// Lists the segments of a directory, oldest first.
fn left_behind(directory: &Path) -> io::Result<VecDeque<Arc<Segment>>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(directory)? {
        segments.extend(Segment::left_behind(entry?.path())?.map(Arc::new));
    }
    segments.sort_by_key(|segment| segment.number());
    Ok(segments.into())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A directory that is removed when the test ends.
    pub(crate) struct Directory(PathBuf);

    impl Directory {
        pub(crate) fn new() -> Self {
            Self(std::env::temp_dir().join(format!("spool-{}", uuid::Uuid::now_v7())))
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn content(segment: &Segment) -> Vec<u8> {
        let mut bytes = fs::read(segment.path()).unwrap();
        bytes.truncate(usize::try_from(segment.end()).unwrap());
        bytes
    }

    #[test]
    fn two_edges_never_share_a_spool() {
        let directory = Directory::new();
        let first = Spool::open(&directory.0).unwrap();
        assert!(matches!(Spool::open(&directory.0), Err(OpenError::InUse(_))));
        drop(first);
        Spool::open(&directory.0).unwrap();
    }

    #[test]
    fn what_was_left_behind_is_found_in_order_and_never_appended_to() {
        let directory = Directory::new();
        let spool = Spool::open(&directory.0).unwrap();
        spool.append(b"one").unwrap();
        spool.seal();
        spool.append(b"two").unwrap();
        spool.append(b"three").unwrap();
        drop(spool);

        let spool = Spool::open(&directory.0).unwrap();
        spool.append(b"four").unwrap();
        let segments = spool.segments();
        let contents: Vec<Vec<u8>> = segments.iter().map(|segment| content(segment)).collect();
        assert_eq!(contents, [&b"one"[..], b"twothree", b"four"]);
        let left_behind: Vec<bool> = segments.iter().map(|segment| segment.is_left_behind()).collect();
        assert_eq!(left_behind, [true, true, false]);
        assert!(segments[1].is_sealed() && !segments[2].is_sealed());
    }

    #[test]
    fn a_full_segment_is_followed_by_another() {
        let directory = Directory::new();
        let spool = Spool::open(&directory.0).unwrap();
        let record = vec![b'x'; usize::try_from(SEGMENT_BYTES).unwrap()];
        spool.append(&record).unwrap();
        spool.append(b"next").unwrap();
        let segments = spool.segments();
        assert_eq!(segments.len(), 2);
        assert!(segments[0].is_sealed());
        assert_eq!(content(&segments[1]), b"next");
    }

    #[test]
    fn a_deleted_segment_is_gone_for_the_next_process_too() {
        let directory = Directory::new();
        let spool = Spool::open(&directory.0).unwrap();
        spool.append(b"one").unwrap();
        spool.seal();
        spool.sync().unwrap();
        spool.delete(&spool.segments()[0]).unwrap();
        assert!(spool.segments().is_empty());
        drop(spool);
        assert!(Spool::open(&directory.0).unwrap().segments().is_empty());
    }

    #[test]
    fn probing_the_disk_keeps_nothing() {
        let directory = Directory::new();
        let spool = Spool::open(&directory.0).unwrap();
        spool.append(b"one").unwrap();
        spool.probe().unwrap();
        spool.append(b"two").unwrap();
        assert_eq!(fs::read(spool.segments()[0].path()).unwrap(), b"onetwo");
    }

    #[test]
    fn files_of_others_are_left_alone() {
        let directory = Directory::new();
        fs::create_dir_all(&directory.0).unwrap();
        fs::write(directory.0.join("notes.txt"), "mine").unwrap();
        let spool = Spool::open(&directory.0).unwrap();
        assert!(spool.segments().is_empty());
        assert!(directory.0.join("notes.txt").exists());
    }
}
