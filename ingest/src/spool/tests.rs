//! Tests of the whole spool, and of opening a directory that an earlier process left.

use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::*;
use crate::spool::record::Record;

/// A directory that is removed when the test ends.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        Self(std::env::temp_dir().join(format!("spool-{}", uuid::Uuid::now_v7())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn open(&self) -> Spool {
        Spool::open(&self.0, None).unwrap()
    }

    /// Returns the files with this extension, in order.
    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
        files.sort();
        files
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn append(spool: &Spool, value: &str) -> Result<(), AppendError> {
    spool.append(&mut Record { at: 7, partition: 0, key: b"k", value: value.as_bytes() }.encode().unwrap())
}

/// Appends a small record that was answered at `at`.
pub(crate) fn append_at(spool: &Spool, at: i64) {
    let record = Record { at, partition: 0, key: b"k", value: b"{}" };
    spool.append(&mut record.encode().unwrap()).unwrap();
}

/// Reads a segment to its end; returns the indexes and values, and the number of damaged bytes.
fn read(segment: &Segment) -> (Vec<(u32, String)>, usize) {
    let mut reader = Reader::new(segment).unwrap();
    let (mut values, mut damaged) = (Vec::new(), 0);
    loop {
        let consumed = match reader.next(segment.end()).unwrap() {
            Next::Record(found) => {
                values.push((found.index, String::from_utf8(found.record.value.to_vec()).unwrap()));
                damaged += found.skipped;
                found.consumed
            }
            Next::Damage(bytes) => {
                damaged += bytes;
                bytes
            }
            Next::End => return (values, damaged),
        };
        reader.advance(consumed);
    }
}

fn values(spool: &Spool) -> Vec<Vec<String>> {
    spool
        .segments()
        .iter()
        .map(|segment| read(segment).0.into_iter().map(|(_, value)| value).collect())
        .collect()
}

#[test]
fn two_edges_never_share_a_spool() {
    let directory = Directory::new();
    let first = directory.open();
    assert!(matches!(Spool::open(directory.path(), None), Err(OpenError::InUse(_))));
    drop(first);
    directory.open();
}

#[test]
fn only_the_edges_user_can_read_its_clicks() {
    let directory = Directory::new();
    let spool = directory.open();
    append(&spool, "one").unwrap();
    spool.prepare().unwrap();
    let mut confirmed = spool.confirmed(&spool.segments()[0]);
    confirmed.insert(0);
    confirmed.write().unwrap();
    let files: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(files.len(), 4, "{files:?}");
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
    }
}

#[test]
fn recovered_segments_are_in_order_and_not_appended_to() {
    let directory = Directory::new();
    let spool = directory.open();
    append(&spool, "one").unwrap();
    spool.seal();
    append(&spool, "two").unwrap();
    append(&spool, "three").unwrap();
    drop(spool);

    let spool = directory.open();
    append(&spool, "four").unwrap();
    assert_eq!(values(&spool), [vec!["one"], vec!["two", "three"], vec!["four"]]);
    let segments = spool.segments();
    let recovered: Vec<bool> = segments.iter().map(|segment| segment.is_recovered()).collect();
    assert_eq!(recovered, [true, true, false]);
    assert!(segments[1].is_sealed() && !segments[2].is_sealed());
    assert!(segments.iter().all(|segment| segment.first_at() == Some(7)));
}

#[test]
fn a_full_segment_is_followed_by_the_prepared_one() {
    let directory = Directory::new();
    let spool = Spool::open(directory.path(), Some(MIN_BYTES)).unwrap();
    let value = "x".repeat(100_000);
    spool.prepare().unwrap();
    for _ in 0..3 {
        append(&spool, &value).unwrap();
        spool.prepare().unwrap();
    }
    let segments = spool.segments();
    assert_eq!(segments.iter().map(|segment| segment.records()).collect::<Vec<_>>(), [2, 1]);
    assert!(segments[0].is_sealed() && !segments[1].is_sealed());
    assert_eq!(directory.files("spare").len(), 1);
}

#[test]
fn appending_never_changes_a_files_size() {
    let directory = Directory::new();
    let spool = directory.open();
    append(&spool, "one").unwrap();
    let before = fs::metadata(spool.segments()[0].path()).unwrap().len();
    (0..1_000).for_each(|_| append(&spool, "more").unwrap());
    assert_eq!(fs::metadata(spool.segments()[0].path()).unwrap().len(), before);
    assert_eq!(spool.bytes(), before);
}

#[test]
fn a_sealed_segment_frees_its_unused_space() {
    let directory = Directory::new();
    let spool = directory.open();
    append(&spool, "one").unwrap();
    spool.prepare().unwrap();
    spool.seal();
    let segment = &spool.segments()[0];
    assert_eq!(fs::metadata(segment.path()).unwrap().len(), segment.end());
    assert_eq!(spool.bytes(), segment.end());
    assert_eq!(directory.files("spare"), Vec::<PathBuf>::new());
    assert_eq!(read(segment).0.len(), 1);
}

#[test]
fn an_old_segment_without_confirmed_records_is_not_sealed() {
    let directory = Directory::new();
    let spool = directory.open();
    append(&spool, "one").unwrap();
    let segment = &spool.segments()[0];
    spool.writer.lock().active.as_mut().unwrap().since -= Duration::from_secs(6);
    spool.sync().unwrap();
    assert!(!segment.is_sealed());
    segment.confirm(1);
    spool.sync().unwrap();
    assert!(segment.is_sealed());
}

#[test]
fn a_full_spool_rejects_clicks_until_a_segment_is_deleted() {
    let directory = Directory::new();
    let spool = Spool::open(directory.path(), Some(MIN_BYTES)).unwrap();
    let value = "x".repeat(50_000);
    let mut stored = 0;
    let error = loop {
        match append(&spool, &value) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AppendError::Full(MIN_BYTES)), "{error}");
    assert_eq!(stored, 20, "five in each of four segments");
    assert_eq!(spool.bytes(), MIN_BYTES);
    assert!(spool.prepare().is_err() && append(&spool, "small").is_err());

    spool.delete(&spool.segments()[0]).unwrap();
    spool.prepare().unwrap();
    append(&spool, "small").unwrap();
    assert_eq!(spool.bytes(), MIN_BYTES);
    assert_eq!(values(&spool).concat().len(), 16);
}

#[test]
fn recovered_segments_count_towards_the_size() {
    let directory = Directory::new();
    let spool = Spool::open(directory.path(), Some(MIN_BYTES)).unwrap();
    while append(&spool, &"x".repeat(50_000)).is_ok() {}
    drop(spool);
    let spool = Spool::open(directory.path(), Some(MIN_BYTES)).unwrap();
    assert_eq!(spool.bytes(), MIN_BYTES);
    assert!(matches!(append(&spool, "more"), Err(AppendError::Full(_))));
}

#[test]
fn the_next_process_does_not_find_a_deleted_segment() {
    let directory = Directory::new();
    let spool = directory.open();
    append(&spool, "one").unwrap();
    let segment = spool.segments()[0].clone();
    let mut confirmed = spool.confirmed(&segment);
    confirmed.insert(0);
    confirmed.write().unwrap();
    spool.seal();
    spool.sync().unwrap();
    spool.delete(&segment).unwrap();
    assert!(spool.segments().is_empty());
    assert_eq!(spool.bytes(), 0);
    drop(spool);
    assert!(directory.open().segments().is_empty());
    assert_eq!(directory.files("confirmed"), Vec::<PathBuf>::new());
}

#[test]
fn unused_files_are_removed() {
    let directory = Directory::new();
    let spool = directory.open();
    spool.prepare().unwrap();
    append(&spool, "one").unwrap();
    let used = spool.segments()[0].path().to_owned();
    let empty = fs::read(&used).unwrap()[..header::LEN].to_vec();
    // A killed process does not remove its prepared file.
    spool.prepare().unwrap();
    std::mem::forget(spool.writer.lock().spare.take());
    drop(spool);
    fs::write(directory.path().join("00000000000000000007.clicks"), "").unwrap();
    fs::write(directory.path().join("00000000000000000008.clicks"), vec![0; 10_000]).unwrap();
    fs::write(directory.path().join("00000000000000000009.clicks"), [empty, vec![0; 10_000]].concat())
        .unwrap();
    assert_eq!(directory.files("spare").len(), 1);

    let spool = directory.open();
    assert!(spool.unrecognized().is_empty());
    assert_eq!(values(&spool), [["one"]]);
    assert_eq!((directory.files("clicks"), directory.files("spare").len()), (vec![used], 0));
}

#[test]
fn unrecognized_files_are_reported_and_not_changed() {
    let directory = Directory::new();
    let spool = directory.open();
    append(&spool, "one").unwrap();
    let mut newer = fs::read(spool.segments()[0].path()).unwrap();
    drop(spool);
    newer[8] = 9;
    let sum = crc32fast::hash(&newer[..12]);
    newer[12..16].copy_from_slice(&sum.to_le_bytes());
    fs::write(directory.path().join("5.clicks"), &newer).unwrap();
    fs::write(directory.path().join("6.clicks"), "no segment at all").unwrap();
    fs::create_dir(directory.path().join("7.clicks")).unwrap();
    fs::write(directory.path().join(format!("{}.clicks", u64::MAX)), "no number").unwrap();
    fs::write(directory.path().join("notes.txt"), "mine").unwrap();
    fs::write(directory.path().join("notes.spare"), "mine").unwrap();
    fs::write(directory.path().join("notes.confirmed"), "mine").unwrap();

    let spool = directory.open();
    append(&spool, "two").unwrap();
    assert_eq!(values(&spool), [["one"], ["two"]]);
    let mut reported: Vec<_> = spool
        .unrecognized()
        .iter()
        .map(|file| (file.path.file_name().unwrap().to_str().unwrap(), file.reason.as_str()))
        .collect();
    reported.sort();
    assert_eq!(
        reported,
        [
            ("5.clicks", "it has format 9, which this build cannot read"),
            ("6.clicks", "it contains no records that this build can read"),
            ("7.clicks", "it is not a regular file"),
        ]
    );
    assert_eq!(spool.segments()[1].number(), 8, "above the existing names");
    assert_eq!(fs::read(directory.path().join("5.clicks")).unwrap(), newer);
    for name in ["6.clicks", "7.clicks", "notes.txt", "notes.spare", "notes.confirmed"] {
        assert!(directory.path().join(name).exists(), "{name}");
    }
}

#[test]
fn a_name_collision_loses_no_click() {
    let directory = Directory::new();
    let spool = directory.open();
    fs::create_dir(directory.path().join(format!("{:020}.clicks", 0))).unwrap();
    append(&spool, "one").unwrap();
    assert_eq!(spool.segments()[0].number(), 1);
    fs::create_dir(directory.path().join(format!("{:020}.spare", 2))).unwrap();
    spool.seal();
    append(&spool, "two").unwrap();
    assert_eq!(values(&spool), [["one"], ["two"]]);
}

/// Returns where each record of a segment begins, and the end of the last one.
fn borders(bytes: &[u8], records: usize) -> Vec<usize> {
    let mut borders = vec![header::LEN];
    for _ in 0..records {
        let begin = borders[borders.len() - 1];
        let found = record::find(&bytes[begin..], 1).unwrap();
        borders.push(begin + found.consumed);
    }
    borders
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Exactly the records with intact bytes are read, with their own indexes.
    #[test]
    fn damage_loses_only_the_records_that_it_touches(
        lens in proptest::collection::vec(0..600_usize, 1..12),
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), 1..=255_u8), 0..6),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let directory = Directory::new();
        let spool = Spool::open(directory.path(), Some(MIN_BYTES)).unwrap();
        let written: Vec<String> =
            lens.iter().enumerate().map(|(number, len)| format!("{number}{}", "y".repeat(*len))).collect();
        written.iter().for_each(|value| append(&spool, value).unwrap());
        let path = spool.segments()[0].path().to_owned();
        drop(spool);

        let mut bytes = fs::read(&path).unwrap();
        let borders = borders(&bytes, written.len());
        let end = borders[written.len()];
        // The damage is in the records or shortly after them; the rest of the file is zeroes.
        let flips: Vec<_> = flips.into_iter().map(|(at, flip)| (at.index(end + 10), flip)).collect();
        let cut = cut.map_or(bytes.len(), |cut| cut.index(end + 10));
        flips.iter().for_each(|(at, flip)| bytes[*at] ^= flip);
        bytes.truncate(cut);
        fs::write(&path, &bytes).unwrap();
        let intact: Vec<(u32, String)> = (0..written.len())
            .filter(|number| borders[number + 1] <= cut)
            .filter(|number| {
                // Two flips of the same byte may cancel out.
                let mut changed = vec![0_u8; end + 10];
                flips.iter().for_each(|(at, flip)| changed[*at] ^= flip);
                changed[borders[*number]..borders[number + 1]].iter().all(|change| *change == 0)
            })
            .map(|number| (u32::try_from(number).unwrap(), written[number].clone()))
            .collect();

        let spool = Spool::open(directory.path(), Some(MIN_BYTES)).unwrap();
        let found: Vec<_> = spool.segments().iter().flat_map(|segment| read(segment).0).collect();
        prop_assert_eq!(found, intact);
    }
}
