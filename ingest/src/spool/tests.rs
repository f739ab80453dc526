//! The spool as its two users see it, and what is found in a directory that was left behind.

use proptest::prelude::*;

use super::{record::Record, *};

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

    /// The names of the files of a kind, in order.
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

fn append(spool: &Spool, value: &str) -> Result<(), Refused> {
    spool.append(&mut Record { at: 7, partition: 0, key: b"k", value: value.as_bytes() }.encode().unwrap())
}

/// Reads a segment to its end; returns the indexes and values, and how many bytes are damaged.
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
fn what_was_left_behind_is_found_in_order_and_never_appended_to() {
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
    let left_behind: Vec<bool> = segments.iter().map(|segment| segment.is_left_behind()).collect();
    assert_eq!(left_behind, [true, true, false]);
    assert!(segments[1].is_sealed() && !segments[2].is_sealed());
    assert!(segments.iter().all(|segment| segment.first_at() == Some(7)));
}

#[test]
fn a_full_segment_is_followed_by_another_that_was_ready() {
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
fn a_sealed_segment_gives_back_what_it_does_not_need() {
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
fn a_segment_that_kafka_takes_nothing_of_does_not_end_by_its_age() {
    let directory = Directory::new();
    let spool = directory.open();
    append(&spool, "one").unwrap();
    let segment = &spool.segments()[0];
    spool.writer().active.as_mut().unwrap().since -= Duration::from_secs(6);
    spool.sync().unwrap();
    assert!(!segment.is_sealed());
    segment.confirm(1);
    spool.sync().unwrap();
    assert!(segment.is_sealed());
}

#[test]
fn a_full_spool_refuses_and_takes_again_what_it_has_given_back() {
    let directory = Directory::new();
    let spool = Spool::open(directory.path(), Some(MIN_BYTES)).unwrap();
    let value = "x".repeat(50_000);
    let mut kept = 0;
    let refused = loop {
        match append(&spool, &value) {
            Ok(()) => kept += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, Refused::Full(MIN_BYTES)), "{refused}");
    assert_eq!(kept, 20, "five in each of four segments");
    assert_eq!(spool.bytes(), MIN_BYTES);
    assert!(spool.prepare().is_err() && append(&spool, "small").is_err());

    spool.delete(&spool.segments()[0]).unwrap();
    spool.prepare().unwrap();
    append(&spool, "small").unwrap();
    assert_eq!(spool.bytes(), MIN_BYTES);
    assert_eq!(values(&spool).concat().len(), 16);
}

#[test]
fn what_was_left_behind_counts_towards_the_size() {
    let directory = Directory::new();
    let spool = Spool::open(directory.path(), Some(MIN_BYTES)).unwrap();
    while append(&spool, &"x".repeat(50_000)).is_ok() {}
    drop(spool);
    let spool = Spool::open(directory.path(), Some(MIN_BYTES)).unwrap();
    assert_eq!(spool.bytes(), MIN_BYTES);
    assert!(matches!(append(&spool, "more"), Err(Refused::Full(_))));
}

#[test]
fn a_deleted_segment_is_gone_for_the_next_process_too() {
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
fn what_was_made_and_never_used_is_removed() {
    let directory = Directory::new();
    let spool = directory.open();
    spool.prepare().unwrap();
    append(&spool, "one").unwrap();
    let used = spool.segments()[0].path().to_owned();
    let empty = fs::read(&used).unwrap()[..header::LEN].to_vec();
    // A killed process gives nothing back.
    spool.prepare().unwrap();
    std::mem::forget(spool.writer().spare.take());
    drop(spool);
    fs::write(directory.path().join("00000000000000000007.clicks"), "").unwrap();
    fs::write(directory.path().join("00000000000000000008.clicks"), vec![0; 10_000]).unwrap();
    fs::write(directory.path().join("00000000000000000009.clicks"), [empty, vec![0; 10_000]].concat())
        .unwrap();
    assert_eq!(directory.files("spare").len(), 1);

    let spool = directory.open();
    assert!(spool.left_alone().is_empty());
    assert_eq!(values(&spool), [["one"]]);
    assert_eq!((directory.files("clicks"), directory.files("spare").len()), (vec![used], 0));
}

#[test]
fn what_is_no_segment_of_this_build_is_left_alone_and_told() {
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
    let mut told: Vec<_> = spool
        .left_alone()
        .iter()
        .map(|file| (file.path.file_name().unwrap().to_str().unwrap(), file.reason.as_str()))
        .collect();
    told.sort();
    assert_eq!(
        told,
        [
            ("5.clicks", "it is of format 9, which this build cannot read"),
            ("6.clicks", "there is nothing in it that this build can read"),
            ("7.clicks", "it is no file"),
        ]
    );
    assert_eq!(spool.segments()[1].number(), 8, "no name that is taken");
    assert_eq!(fs::read(directory.path().join("5.clicks")).unwrap(), newer);
    for name in ["6.clicks", "7.clicks", "notes.txt", "notes.spare", "notes.confirmed"] {
        assert!(directory.path().join(name).exists(), "{name}");
    }
}

#[test]
fn a_name_that_is_taken_while_the_spool_is_open_costs_no_click() {
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

/// Where each record of a segment's file begins, with the end of the last.
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

    /// Every record whose bytes are intact is read under its own index, and none is invented.
    #[test]
    fn damage_costs_what_it_touches_and_no_more(
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
        // Most of the file is zeroes: the damage goes to what is in use, and a little behind.
        let flips: Vec<_> = flips.into_iter().map(|(at, flip)| (at.index(end + 10), flip)).collect();
        let cut = cut.map_or(bytes.len(), |cut| cut.index(end + 10));
        flips.iter().for_each(|(at, flip)| bytes[*at] ^= flip);
        bytes.truncate(cut);
        fs::write(&path, &bytes).unwrap();
        let intact: Vec<(u32, String)> = (0..written.len())
            .filter(|number| borders[number + 1] <= cut)
            .filter(|number| {
                // Two flips of one byte may undo each other.
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
