//! What is in a spool, for operators: `ingest spool`.

use std::{
    collections::BTreeSet,
    fmt::{self, Display},
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{
    Next, Reader, Segment,
    confirmed::{Boot, Confirmed},
    segment::Examined,
    size,
};

/// How often a segment is read at most until it is whole: the edge may be writing its last record.
const READS: usize = 4;

/// How long the edge is given for that.
const WRITING: Duration = Duration::from_millis(20);

/// What a spool holds, while an edge may use it: a segment that goes meanwhile is left out.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The spool's directory.
    pub directory: PathBuf,
    /// What its files take on the disk.
    pub bytes: u64,
    /// Clicks that can be read.
    pub records: u64,
    /// Those of them that Kafka is known to have. Sending starts with the others after a restart.
    pub confirmed: u64,
    /// When the first click was answered that is not confirmed.
    #[serde(with = "schemas::time::optional_millis")]
    pub oldest_unconfirmed: Option<DateTime<Utc>>,
    /// When the last click was answered.
    #[serde(with = "schemas::time::optional_millis")]
    pub newest: Option<DateTime<Utc>>,
    /// Bytes that are in no record.
    pub damaged_bytes: u64,
    /// Clicks that are missing before a later one. How many are missing at a segment's end cannot be told.
    pub missing: u64,
    /// Each segment, oldest first.
    pub segments: Vec<SegmentReport>,
    /// Files that are named like segments and are none that this build reads.
    pub left_alone: Vec<LeftAlone>,
}

/// What a segment holds.
#[derive(Debug, Serialize)]
pub struct SegmentReport {
    /// Its place in the order.
    pub number: u64,
    /// What its file takes on the disk.
    pub bytes: u64,
    /// Clicks that can be read.
    pub records: u64,
    /// Those of them that Kafka is known to have.
    pub confirmed: u64,
    /// When the first of its clicks was answered.
    #[serde(with = "schemas::time::optional_millis")]
    pub oldest: Option<DateTime<Utc>>,
    /// When the first of its clicks was answered that is not confirmed.
    #[serde(with = "schemas::time::optional_millis")]
    pub oldest_unconfirmed: Option<DateTime<Utc>>,
    /// When the last of its clicks was answered.
    #[serde(with = "schemas::time::optional_millis")]
    pub newest: Option<DateTime<Utc>>,
    /// Bytes that are in no record.
    pub damaged_bytes: u64,
    /// Clicks that are missing before a later one.
    pub missing: u64,
}

/// A file that the edge neither sends nor deletes.
#[derive(Debug, Serialize)]
pub struct LeftAlone {
    /// The file.
    pub path: PathBuf,
    /// What it takes on the disk.
    pub bytes: u64,
    /// What is the matter with it.
    pub reason: String,
}

impl Report {
    /// Reads the spool in a directory, and changes nothing there.
    ///
    /// # Errors
    /// When the directory cannot be read. Of a file that cannot be, the report says so.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let boot = Boot::current();
        let mut report = Self {
            directory: directory.to_owned(),
            bytes: 0,
            records: 0,
            confirmed: 0,
            oldest_unconfirmed: None,
            newest: None,
            damaged_bytes: 0,
            missing: 0,
            segments: Vec::new(),
            left_alone: Vec::new(),
        };
        let mut files = BTreeSet::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            files.extend(Segment::number_of(&path).map(|number| (number, path)));
        }
        for (number, path) in files {
            match read(&path, number, &boot) {
                Ok(Some(segment)) => report.add(segment),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let bytes = size::of(&path);
                    report.bytes += bytes;
                    report.left_alone.push(LeftAlone { path, bytes, reason: error.to_string() });
                }
            }
        }
        Ok(report)
    }

    /// Returns whether everything in it can be read.
    pub fn is_whole(&self) -> bool {
        self.damaged_bytes == 0 && self.missing == 0 && self.left_alone.is_empty()
    }

    fn add(&mut self, segment: SegmentReport) {
        self.bytes += segment.bytes;
        self.records += segment.records;
        self.confirmed += segment.confirmed;
        self.oldest_unconfirmed = self.oldest_unconfirmed.into_iter().chain(segment.oldest_unconfirmed).min();
        self.newest = self.newest.max(segment.newest);
        self.damaged_bytes += segment.damaged_bytes;
        self.missing += segment.missing;
        self.segments.push(segment);
    }
}

/// Reads one segment; `None` for one that was never used.
fn read(path: &Path, number: u64, boot: &Boot) -> io::Result<Option<SegmentReport>> {
    let mut reads = 0;
    loop {
        reads += 1;
        let outcome = match Segment::examine(path, number) {
            Ok(Examined::Segment(segment)) => read_whole(&segment, boot).map(Some),
            Ok(Examined::Unused) => return Ok(None),
            Ok(Examined::LeftAlone(reason)) => return Err(io::Error::other(reason)),
            Err(error) => Err(error),
        };
        let whole = match &outcome {
            Ok(Some((_, ends_damaged))) => !ends_damaged,
            Ok(None) => true,
            // The edge may have cut the file at its last record.
            Err(error) => error.kind() != io::ErrorKind::UnexpectedEof,
        };
        if whole || reads == READS {
            return outcome.map(|read| read.map(|(report, _)| report));
        }
        thread::sleep(WRITING);
    }
}

/// Reads a segment to its end, and tells whether damage is the last thing in it.
fn read_whole(segment: &Segment, boot: &Boot) -> io::Result<(SegmentReport, bool)> {
    let confirmed = Confirmed::of(segment, boot);
    let mut report = SegmentReport {
        number: segment.number(),
        bytes: segment.bytes(),
        records: 0,
        confirmed: 0,
        oldest: None,
        oldest_unconfirmed: None,
        newest: None,
        damaged_bytes: 0,
        missing: 0,
    };
    let mut reader = Reader::new(segment)?;
    let (mut next_index, mut ends_damaged) = (0, false);
    loop {
        let consumed = match reader.next(segment.end())? {
            Next::Record(found) => {
                let at = DateTime::from_timestamp_millis(found.record.at);
                report.records += 1;
                report.oldest = report.oldest.into_iter().chain(at).min();
                report.newest = report.newest.max(at);
                if confirmed.contains(found.index) {
                    report.confirmed += 1;
                } else {
                    report.oldest_unconfirmed = report.oldest_unconfirmed.into_iter().chain(at).min();
                }
                report.damaged_bytes += found.skipped as u64;
                report.missing += u64::from(found.index.saturating_sub(next_index));
                next_index = found.index.saturating_add(1);
                ends_damaged = false;
                found.consumed
            }
            Next::Damage(bytes) => {
                report.damaged_bytes += bytes as u64;
                ends_damaged = true;
                bytes
            }
            Next::End => return Ok((report, ends_damaged)),
        };
        reader.advance(consumed);
    }
}

impl Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, records, confirmed, damaged_bytes, missing, .. } = self;
        let segments = self.segments.len();
        writeln!(out, "spool              {}", self.directory.display())?;
        writeln!(out, "segments           {segments}, {bytes} bytes on the disk")?;
        writeln!(out, "records            {records}, of which Kafka has {confirmed}")?;
        writeln!(out, "oldest unconfirmed {}", text(self.oldest_unconfirmed))?;
        writeln!(out, "newest             {}", text(self.newest))?;
        writeln!(out, "damage             {damaged_bytes} bytes, {missing} records missing")?;
        if segments > 0 {
            writeln!(
                out,
                "\n{:>20} {:>10} {:>8} {:>9} {:>24} {:>24} {:>8} {:>7}",
                "segment", "bytes", "records", "confirmed", "oldest", "newest", "damaged", "missing"
            )?;
        }
        for segment in &self.segments {
            writeln!(
                out,
                "{:>20} {:>10} {:>8} {:>9} {:>24} {:>24} {:>8} {:>7}",
                segment.number,
                segment.bytes,
                segment.records,
                segment.confirmed,
                text(segment.oldest),
                text(segment.newest),
                segment.damaged_bytes,
                segment.missing
            )?;
        }
        for file in &self.left_alone {
            writeln!(out, "\nleft alone: {}, {} bytes: {}", file.path.display(), file.bytes, file.reason)?;
        }
        Ok(())
    }
}

fn text(time: Option<DateTime<Utc>>) -> String {
    time.map_or_else(|| "-".to_owned(), schemas::time::text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::{Spool, record::Record, tests::Directory};

    fn append(spool: &Spool, at: i64) {
        let record = Record { at, partition: 0, key: b"k", value: b"{}" };
        spool.append(&mut record.encode().unwrap()).unwrap();
    }

    #[test]
    fn a_spool_is_read_beside_the_edge_that_uses_it() {
        let directory = Directory::new();
        let spool = Spool::open(directory.path(), None).unwrap();
        (1..=3).for_each(|at| append(&spool, at));
        spool.seal();
        (4..=5).for_each(|at| append(&spool, at));
        let mut confirmed = spool.confirmed(&spool.segments()[0]);
        confirmed.insert(0);
        confirmed.write().unwrap();

        let report = Report::read(directory.path()).unwrap();
        assert!(report.is_whole(), "{report}");
        assert_eq!((report.records, report.confirmed, report.bytes), (5, 1, spool.bytes()));
        assert_eq!(report.oldest_unconfirmed, DateTime::from_timestamp_millis(2));
        assert_eq!(report.newest, DateTime::from_timestamp_millis(5));
        assert_eq!(report.segments.iter().map(|segment| segment.records).collect::<Vec<_>>(), [3, 2]);
        append(&spool, 6);
        assert_eq!(Report::read(directory.path()).unwrap().records, 6);
    }

    #[test]
    fn damage_is_told_and_nothing_is_changed() {
        let directory = Directory::new();
        let spool = Spool::open(directory.path(), None).unwrap();
        (1..=3).for_each(|at| append(&spool, at));
        let path = spool.segments()[0].path().to_owned();
        drop(spool);
        let mut bytes = fs::read(&path).unwrap();
        let len = (bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1 - 28) / 3;
        bytes[28 + len + 20] ^= 1;
        fs::write(&path, &bytes).unwrap();
        fs::write(directory.path().join("9.clicks"), "no segment").unwrap();

        let report = Report::read(directory.path()).unwrap();
        assert!(!report.is_whole());
        assert_eq!((report.records, report.missing), (2, 1));
        assert_eq!(report.damaged_bytes, len as u64);
        assert_eq!(report.left_alone[0].path, directory.path().join("9.clicks"));
        let text = report.to_string();
        assert!(text.contains("1 records missing") && text.contains("left alone"), "{text}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn an_empty_spool_is_whole_and_one_that_is_not_there_is_an_error() {
        let directory = Directory::new();
        assert!(Report::read(directory.path()).is_err());
        let spool = Spool::open(directory.path(), None).unwrap();
        spool.prepare().unwrap();
        let report = Report::read(directory.path()).unwrap();
        assert!(report.is_whole() && report.segments.is_empty());
    }
}
