//! Finds the files that an earlier process left in a spool.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Serialize;

use crate::spool::header::{self, Header};
use crate::spool::reader::{Next, Reader};
use crate::spool::segment::Segment;
use crate::spool::spare::Spare;
use crate::spool::{confirmed, record};

/// How much of a file is read at once to find its end.
const WINDOW: usize = 64 * 1024;

/// A file that is named like a segment but that this build cannot read. The edge neither sends nor deletes it.
#[derive(Debug, Serialize)]
pub struct UnrecognizedFile {
    /// The file.
    pub path: PathBuf,
    /// The file's size on the disk.
    pub bytes: u64,
    /// Why the file cannot be read.
    pub reason: String,
}

impl UnrecognizedFile {
    pub(super) fn new(path: PathBuf, reason: String) -> Self {
        let bytes = path.symlink_metadata().map_or(0, |file| if file.is_file() { file.len() } else { 0 });
        Self { path, bytes, reason }
    }
}

/// The content of a file that is named like a segment.
#[derive(Debug)]
pub(super) enum Content {
    Segment(Segment),
    /// A segment without records.
    Unused,
    /// Not readable by this build, with the reason.
    Unrecognized(String),
}

/// The files that an earlier process left in a directory.
pub(super) struct Files {
    /// Oldest first.
    pub(super) segments: Vec<Segment>,
    pub(super) unrecognized: Vec<UnrecognizedFile>,
    /// A number above those of all files.
    pub(super) next_number: u64,
}

/// Finds the files that an earlier process left in a directory, and deletes those without records.
pub(super) fn find(directory: &Path) -> io::Result<Files> {
    let (mut segments, mut unrecognized, mut next_number) = (Vec::new(), Vec::new(), 0);
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Some(number) = Segment::number_of(&path) else {
            Spare::remove_if_one(&path);
            confirmed::remove_if_alone(&path);
            continue;
        };
        // Unrecognized files count too, because their names are taken.
        next_number = next_number.max(number + 1);
        let reason = match examine(&path, number) {
            Ok(Content::Segment(segment)) => {
                segments.push(segment);
                continue;
            }
            Ok(Content::Unused) => match fs::remove_file(&path) {
                Ok(()) => continue,
                Err(error) => format!("it is empty and cannot be removed: {error}"),
            },
            Ok(Content::Unrecognized(reason)) => reason,
            // One file that cannot be read does not prevent the start.
            Err(error) => format!("it cannot be read: {error}"),
        };
        unrecognized.push(UnrecognizedFile::new(path, reason));
    }
    segments.sort_by_key(Segment::number);
    Ok(Files { segments, unrecognized, next_number })
}

/// Examines a file that is named like a segment.
pub(super) fn examine(path: &Path, number: u64) -> io::Result<Content> {
    // Before opening: opening a pipe would block, and opening a directory succeeds.
    if !path.metadata()?.is_file() {
        return Ok(Content::Unrecognized("it is not a regular file".to_owned()));
    }
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut beginning = vec![0; usize::try_from(len).map_or(WINDOW, |len| len.min(WINDOW))];
    file.read_exact_at(&mut beginning, 0)?;
    let (nonce, start) = match header::decode(&beginning) {
        Header::Segment(nonce) => (nonce, header::LEN),
        Header::UnknownVersion(version) => {
            return Ok(Content::Unrecognized(format!(
                "it has format {version}, which this build cannot read"
            )));
        }
        Header::Damaged => (None, 0),
    };
    let end = data_end(&file, len)?;
    if end <= start as u64 {
        return Ok(Content::Unused);
    }
    let first = record::find(beginning.get(start..).unwrap_or_default(), WINDOW);
    let first_at = first.map(|found| found.record.at);
    let segment = Segment::recovered(number, path.to_owned(), nonce, start as u64..end, len, first_at);
    if start == 0 && !has_records(&segment)? {
        return Ok(Content::Unrecognized("it contains no records that this build can read".to_owned()));
    }
    Ok(Content::Segment(segment))
}

fn has_records(segment: &Segment) -> io::Result<bool> {
    let mut reader = Reader::new(segment)?;
    loop {
        let damaged = match reader.next(segment.end())? {
            Next::Record(_) => return Ok(true),
            Next::End => return Ok(false),
            Next::Damage(bytes) => bytes,
        };
        reader.advance(damaged);
    }
}

/// Returns where the zeroes at the end of a file begin.
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
