//! Reports the content of a spool to operators, for `ingest spool`.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::spool::confirmed::{Boot, Confirmed};
use crate::spool::reader::{Next, Reader};
use crate::spool::recover::{self, Content, UnrecognizedFile};
use crate::spool::segment::Segment;

/// How often a segment with a damaged end is read at most: the edge may be writing its last record.
const MAX_READS: usize = 4;

/// The time between two of these reads.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// The content of a spool. An edge may use the spool at the same time; segments that it deletes meanwhile are left out.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The spool's directory.
    pub directory: PathBuf,
    /// The files' size on the disk.
    pub bytes: u64,
    /// The number of readable clicks.
    pub records: u64,
    /// The number of clicks that Kafka has confirmed. After a restart the edge sends the others.
    pub confirmed: u64,
    /// When the first unconfirmed click was answered.
    #[serde(with = "schemas::time::optional_millis")]
    pub oldest_unconfirmed: Option<DateTime<Utc>>,
    /// When the last click was answered.
    #[serde(with = "schemas::time::optional_millis")]
    pub newest: Option<DateTime<Utc>>,
    /// The number of bytes outside of records.
    pub damaged_bytes: u64,
    /// The number of clicks that are missing before a later one. Those missing at a segment's end are unknown.
    pub missing: u64,
    /// The segments, oldest first.
    pub segments: Vec<SegmentReport>,
    /// Files that are named like segments but cannot be read.
    #[serde(rename = "left_alone")]
    pub unrecognized: Vec<UnrecognizedFile>,
}

/// The content of a segment.
#[derive(Debug, Serialize)]
pub struct SegmentReport {
    /// The segment's number.
    pub number: u64,
    /// The file's size on the disk.
    pub bytes: u64,
    /// The number of readable clicks.
    pub records: u64,
    /// The number of clicks that Kafka has confirmed.
    pub confirmed: u64,
    /// When the first click was answered.
    #[serde(with = "schemas::time::optional_millis")]
    pub oldest: Option<DateTime<Utc>>,
    /// When the first unconfirmed click was answered.
    #[serde(with = "schemas::time::optional_millis")]
    pub oldest_unconfirmed: Option<DateTime<Utc>>,
    /// When the last click was answered.
    #[serde(with = "schemas::time::optional_millis")]
    pub newest: Option<DateTime<Utc>>,
    /// The number of bytes outside of records.
    pub damaged_bytes: u64,
    /// The number of clicks that are missing before a later one.
    pub missing: u64,
}

impl Report {
    /// Reads the spool in a directory without changing it.
    ///
    /// # Errors
    /// When the directory cannot be read. Files that cannot be read are listed in the report.
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
            unrecognized: Vec::new(),
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
                    let file = UnrecognizedFile::new(path, error.to_string());
                    report.bytes += file.bytes;
                    report.unrecognized.push(file);
                }
            }
        }
        Ok(report)
    }

    /// Returns whether everything in the spool can be read.
    pub fn is_complete(&self) -> bool {
        self.damaged_bytes == 0 && self.missing == 0 && self.unrecognized.is_empty()
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

/// Reads one segment; returns `None` if it has no records.
fn read(path: &Path, number: u64, boot: &Boot) -> io::Result<Option<SegmentReport>> {
    let mut reads = 0;
    loop {
        reads += 1;
        let outcome = match recover::examine(path, number) {
            Ok(Content::Segment(segment)) => read_segment(&segment, boot),
            Ok(Content::Unused) => return Ok(None),
            Ok(Content::Unrecognized(reason)) => return Err(io::Error::other(reason)),
            Err(error) => Err(error),
        };
        let complete = match &outcome {
            Ok((_, ends_damaged)) => !ends_damaged,
            // The edge may have truncated the file meanwhile.
            Err(error) => error.kind() != io::ErrorKind::UnexpectedEof,
        };
        if complete || reads == MAX_READS {
            return outcome.map(|(report, _)| Some(report));
        }
        thread::sleep(READ_INTERVAL);
    }
}

/// Reads a segment to its end; returns whether it ends in damage.
fn read_segment(segment: &Segment, boot: &Boot) -> io::Result<(SegmentReport, bool)> {
    let confirmed = Confirmed::read(segment, boot);
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
        for file in &self.unrecognized {
            writeln!(out, "\nunrecognized: {}, {} bytes: {}", file.path.display(), file.bytes, file.reason)?;
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
    use crate::spool::Spool;
    use crate::spool::tests::{Directory, append_at};

    #[test]
    fn a_spool_is_read_while_an_edge_uses_it() {
        let directory = Directory::new();
        let spool = Spool::open(directory.path(), None).unwrap();
        (1..=3).for_each(|at| append_at(&spool, at));
        spool.seal();
        (4..=5).for_each(|at| append_at(&spool, at));
        let mut confirmed = spool.confirmed(&spool.segments()[0]);
        confirmed.insert(0);
        confirmed.write().unwrap();

        let report = Report::read(directory.path()).unwrap();
        assert!(report.is_complete(), "{report}");
        assert_eq!((report.records, report.confirmed, report.bytes), (5, 1, spool.bytes()));
        assert_eq!(report.oldest_unconfirmed, DateTime::from_timestamp_millis(2));
        assert_eq!(report.newest, DateTime::from_timestamp_millis(5));
        assert_eq!(report.segments.iter().map(|segment| segment.records).collect::<Vec<_>>(), [3, 2]);
        append_at(&spool, 6);
        assert_eq!(Report::read(directory.path()).unwrap().records, 6);
    }

    #[test]
    fn damage_is_reported_and_nothing_is_changed() {
        let directory = Directory::new();
        let spool = Spool::open(directory.path(), None).unwrap();
        (1..=3).for_each(|at| append_at(&spool, at));
        let path = spool.segments()[0].path().to_owned();
        drop(spool);
        let mut bytes = fs::read(&path).unwrap();
        let len = (bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1 - 28) / 3;
        bytes[28 + len + 20] ^= 1;
        fs::write(&path, &bytes).unwrap();
        fs::write(directory.path().join("9.clicks"), "no segment").unwrap();

        let report = Report::read(directory.path()).unwrap();
        assert!(!report.is_complete());
        assert_eq!((report.records, report.missing), (2, 1));
        assert_eq!(report.damaged_bytes, len as u64);
        assert_eq!(report.unrecognized[0].path, directory.path().join("9.clicks"));
        let text = report.to_string();
        assert!(text.contains("1 records missing") && text.contains("unrecognized"), "{text}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn an_empty_spool_is_complete_and_a_missing_one_is_an_error() {
        let directory = Directory::new();
        assert!(Report::read(directory.path()).is_err());
        let spool = Spool::open(directory.path(), None).unwrap();
        spool.prepare().unwrap();
        let report = Report::read(directory.path()).unwrap();
        assert!(report.is_complete() && report.segments.is_empty());
    }
}
