//! One file of the spool, shared by the one who appends to it and the one who reads it.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Instant,
};

use super::{
    Next, Reader,
    header::{self, Header},
    record::{self, Encoded, MAX_LEN},
    spare::Spare,
};

/// What segment files end in.
const EXTENSION: &str = "clicks";

/// Stands for the time of a record that there is not.
const NEVER: i64 = i64::MAX;

/// How much of a file is read at once in search of its end.
const WINDOW: usize = 64 * 1024;

/// A segment: a file of records that is appended to, then sealed, then deleted.
#[derive(Debug)]
pub struct Segment {
    number: u64,
    path: PathBuf,
    /// The random number that is this segment's alone; not known when the header is damaged.
    nonce: Option<u64>,
    /// Where the first record begins, unless the header is damaged: then it may be anywhere.
    start: u64,
    /// Where the last whole record ends. The file goes on, with zeroes or with what a failed write left.
    end: AtomicU64,
    /// What the file takes on the disk, in bytes.
    bytes: AtomicU64,
    records: AtomicU64,
    confirmed: AtomicU64,
    first_at: AtomicI64,
    sealed: AtomicBool,
    /// Whether a former process wrote it, which may have sent any of it.
    left_behind: bool,
}

/// What a file that is named like a segment turned out to be.
#[derive(Debug)]
pub(super) enum Examined {
    Segment(Segment),
    /// Made, and never used.
    Unused,
    /// Nothing that this build may touch, and why.
    LeftAlone(String),
}

impl Segment {
    /// Returns the segment's place in the spool's order.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns where its first record begins.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns where its last record ends.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Returns what it takes on the disk, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how many records were appended; 0 for one that a former process wrote.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Returns when its first click was answered, in milliseconds since 1970; `None` if it has none that is known.
    pub fn first_at(&self) -> Option<i64> {
        Some(self.first_at.load(Ordering::Relaxed)).filter(|at| *at != NEVER)
    }

    /// Returns whether nothing will be appended any more.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Returns whether a former process wrote it.
    pub fn is_left_behind(&self) -> bool {
        self.left_behind
    }

    /// Notes that Kafka has so many more of its records.
    pub fn confirm(&self, count: u64) {
        self.confirmed.fetch_add(count, Ordering::Relaxed);
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    /// When the operating system refuses it.
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
        // No spool comes near the last number, and there must always be a next one.
        named.then(|| path.file_stem()?.to_str()?.parse().ok()).flatten().filter(|number| *number < u64::MAX)
    }

    /// Returns where the segment is that a file stands beside.
    pub(super) fn path_beside(path: &Path) -> PathBuf {
        path.with_extension(EXTENSION)
    }

    /// Finds out what a file is that no process appends to.
    pub(super) fn examine(path: &Path, number: u64) -> io::Result<Examined> {
        // Opened first: a pipe in the way would block, a directory opens like a file.
        if !path.metadata()?.is_file() {
            return Ok(Examined::LeftAlone("it is no file".to_owned()));
        }
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut beginning = vec![0; usize::try_from(len).map_or(WINDOW, |len| len.min(WINDOW))];
        file.read_exact_at(&mut beginning, 0)?;
        let (nonce, start) = match header::decode(&beginning) {
            Header::Segment(nonce) => (nonce, header::LEN),
            Header::Foreign(version) => {
                return Ok(Examined::LeftAlone(format!(
                    "it is of format {version}, which this build cannot read"
                )));
            }
            Header::Damaged => (None, 0),
        };
        let end = data_end(&file, len)?;
        if end <= start as u64 {
            return Ok(Examined::Unused);
        }
        let first = record::find(beginning.get(start..).unwrap_or_default(), WINDOW);
        let segment = Self {
            number,
            path: path.to_owned(),
            nonce,
            start: start as u64,
            end: AtomicU64::new(end),
            bytes: AtomicU64::new(len),
            records: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            first_at: AtomicI64::new(first.map_or(NEVER, |found| found.record.at)),
            sealed: AtomicBool::new(true),
            left_behind: true,
        };
        if start == 0 && !segment.has_records()? {
            return Ok(Examined::LeftAlone("there is nothing in it that this build can read".to_owned()));
        }
        Ok(Examined::Segment(segment))
    }

    fn has_records(&self) -> io::Result<bool> {
        let mut reader = Reader::new(self)?;
        loop {
            let damaged = match reader.next(self.end())? {
                Next::Record(_) => return Ok(true),
                Next::End => return Ok(false),
                Next::Damage(bytes) => bytes,
            };
            reader.advance(damaged);
        }
    }
}

/// Returns where the zeroes begin that a file ends in.
fn data_end(file: &File, len: u64) -> io::Result<u64> {
    let mut window = vec![0; WINDOW];
    let mut end = len;
    while end > 0 {
        let begin = end.saturating_sub(WINDOW as u64);
        let part = &mut window[..(end - begin) as usize];
        file.read_exact_at(part, begin)?;
        if let Some(last) = part.iter().rposition(|byte| *byte != 0) {
            return Ok(begin + last as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
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
    /// Takes a prepared file into use.
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
            left_behind: false,
        };
        Ok(Self { segment: segment.into(), file: file.into(), since: Instant::now(), synced: 0 })
    }

    /// Returns whether that record goes into what is left of the file.
    pub(super) fn has_room(&self, record: &Encoded) -> bool {
        self.segment.end() + record.len() as u64 <= self.segment.bytes()
    }

    /// Returns whether something was appended.
    pub(super) fn is_used(&self) -> bool {
        self.segment.records() > 0
    }

    /// Returns whether something was appended of which Kafka has confirmed some.
    pub(super) fn is_confirmed_from(&self) -> bool {
        self.segment.confirmed.load(Ordering::Relaxed) > 0
    }

    /// Appends a record, whole or not at all.
    pub(super) fn append(&self, record: &mut Encoded) -> io::Result<()> {
        let segment = &self.segment;
        let (end, records) = (segment.end(), segment.records());
        let index = u32::try_from(records).map_err(io::Error::other)?;
        let at = record.at();
        let bytes = record.at_index(index);
        // A write that fails halfway moves nothing: what it left is no record.
        self.file.write_all_at(bytes, end)?;
        if index == 0 {
            segment.first_at.store(at, Ordering::Relaxed);
        }
        segment.records.store(records + 1, Ordering::Relaxed);
        segment.end.store(end + bytes.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Gives back what was allocated and not used; returns how many bytes that are.
    pub(super) fn cut(&self) -> u64 {
        let (end, bytes) = (self.segment.end(), self.segment.bytes());
        // On a failure the file stays as large as it is counted.
        if end >= bytes || self.file.set_len(end).is_err() {
            return 0;
        }
        self.segment.bytes.store(end, Ordering::Relaxed);
        bytes - end
    }
}

/// Every record fits into every segment.
const _: () = assert!(header::LEN + MAX_LEN <= super::MIN_SEGMENT_BYTES as usize);
