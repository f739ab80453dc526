//! Which records of a segment Kafka has confirmed, in a small file beside it.
//!
//! With it a killed edge sends again only what was not confirmed. The file is written without being synced: the
//! kernel keeps it when this process is killed. It counts only until the machine is started anew. After a power loss
//! a segment is sent again from its beginning, because a Kafka on the same machine may have lost what it confirmed.
//!
//! The file is blocks of 64 bytes, each with a CRC-32 in its last four. The first says of which segment and of which
//! start of the machine it is; each further one has a bit for each of 480 records, and its checksum begins with the
//! first block, so that it is good in this file only. A damaged block confirms nothing. Blocks never lie across two pages of the kernel, so that a kill leaves each as it was or as it is.

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use crc32fast::Hasher;

use super::{Segment, record};

/// What such files end in.
const EXTENSION: &str = "confirmed";

/// Where Linux tells one start of the machine from another.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const BLOCK: usize = 64;
const SUM: usize = 4;

/// Records of a block.
const BITS: usize = (BLOCK - SUM) * 8;

/// No segment has more records, so that a damaged index costs no memory.
const MAX_RECORDS: u64 = super::MAX_SEGMENT_BYTES / record::MIN_LEN as u64;

/// One start of the machine, if that can be told.
#[derive(Debug, Clone)]
pub(super) struct Boot(Option<[u8; 36]>);

impl Boot {
    pub(super) fn current() -> Self {
        let id = fs::read(BOOT_ID).ok();
        Self(id.and_then(|id| id.first_chunk().copied()))
    }

    /// Returns the first block of the file beside a segment, unless nothing would vouch for it.
    fn block(&self, segment: &Segment) -> Option<[u8; BLOCK]> {
        let (boot, nonce) = (self.0?, segment.nonce()?);
        let mut block = [0; BLOCK];
        block[..8].copy_from_slice(b"hopconf\x01");
        block[8..16].copy_from_slice(&nonce.to_le_bytes());
        block[16..52].copy_from_slice(&boot);
        let sum = crc32fast::hash(&block[..BLOCK - SUM]);
        block[BLOCK - SUM..].copy_from_slice(&sum.to_le_bytes());
        Some(block)
    }
}

/// The confirmed records of one segment.
#[derive(Debug)]
pub struct Confirmed {
    path: PathBuf,
    file: Option<File>,
    /// What the file begins with; without it there is none.
    first: Option<[u8; BLOCK]>,
    bits: Vec<[u8; BLOCK]>,
    /// How many records are confirmed.
    count: u64,
    /// All before are confirmed.
    from_start: u32,
    /// Blocks that differ from the file's.
    changed: Range<usize>,
}

impl Confirmed {
    /// Reads what was noted about a segment; nothing, if that cannot be trusted.
    pub(super) fn of(segment: &Segment, boot: &Boot) -> Self {
        let path = path_of(segment.path());
        let first = boot.block(segment);
        let mut confirmed =
            Self { path, file: None, first, bits: Vec::new(), count: 0, from_start: 0, changed: 0..0 };
        if let Some(first) = first {
            confirmed.bits = read(&confirmed.path, &first);
            confirmed.count = confirmed.bits.iter().map(|block| u64::from(ones(block))).sum();
        }
        confirmed
    }

    /// Returns whether a record is confirmed.
    pub fn contains(&self, index: u32) -> bool {
        let (block, byte, bit) = place(index);
        self.bits.get(block).is_some_and(|block| block[byte] & bit != 0)
    }

    /// Returns how many records are confirmed.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Notes that a record is confirmed.
    pub fn insert(&mut self, index: u32) {
        let (block, byte, bit) = place(index);
        if u64::from(index) >= MAX_RECORDS || self.contains(index) {
            return;
        }
        if self.bits.len() <= block {
            self.bits.resize(block + 1, [0; BLOCK]);
        }
        self.bits[block][byte] |= bit;
        self.count += 1;
        self.changed = if self.changed.is_empty() {
            block..block + 1
        } else {
            self.changed.start.min(block)..self.changed.end.max(block + 1)
        };
    }

    /// Returns the index of the first record that is not confirmed.
    pub fn first_missing(&mut self) -> u32 {
        while self.contains(self.from_start) {
            self.from_start += 1;
        }
        self.from_start
    }

    /// Brings what has changed into the file.
    ///
    /// # Errors
    /// When the disk refuses it: more than need be is sent again after a kill then.
    pub fn write(&mut self) -> io::Result<()> {
        let (false, Some(first)) = (self.changed.is_empty(), self.first) else { return Ok(()) };
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                // Not emptied: what is in it still counts. Blocks of another segment do not, by their checksums.
                let file = File::options().write(true).create(true).truncate(false).open(&self.path)?;
                file.write_all_at(&first, 0)?;
                none.insert(file)
            }
        };
        let blocks = &self.bits[self.changed.clone()];
        let bytes: Vec<u8> = blocks.iter().flat_map(|block| sealed(*block, &first)).collect();
        file.write_all_at(&bytes, ((self.changed.start + 1) * BLOCK) as u64)?;
        self.changed = 0..0;
        Ok(())
    }

    /// Forgets everything, so that the whole segment is sent again, also after a kill.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn forget(&mut self) -> io::Result<()> {
        self.file = None;
        self.bits.clear();
        self.count = 0;
        self.from_start = 0;
        self.changed = 0..0;
        remove(&self.path)
    }
}

/// Removes what stands beside a segment's file.
pub(super) fn remove_beside(segment: &Path) -> io::Result<()> {
    remove(&path_of(segment))
}

/// Removes a file that stands beside no segment any more, if it is such a file.
pub(super) fn remove_if_alone(path: &Path) {
    let named = path.extension().is_some_and(|extension| extension == EXTENSION);
    let segment = Segment::path_beside(path);
    if named && Segment::number_of(&segment).is_some() && !segment.exists() {
        // It would not be believed beside another segment either.
        let _ = remove(path);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn path_of(segment: &Path) -> PathBuf {
    segment.with_extension(EXTENSION)
}

/// Returns the block, the byte in it and the bit in that of a record.
fn place(index: u32) -> (usize, usize, u8) {
    let index = index as usize;
    (index / BITS, index % BITS / 8, 1 << (index % 8))
}

fn ones(block: &[u8; BLOCK]) -> u32 {
    block[..BLOCK - SUM].iter().map(|byte| byte.count_ones()).sum()
}

/// Puts a block's checksum into its end; it is good behind that first block only.
fn sealed(mut block: [u8; BLOCK], first: &[u8; BLOCK]) -> [u8; BLOCK] {
    let mut sum = Hasher::new();
    sum.update(first);
    sum.update(&block[..BLOCK - SUM]);
    block[BLOCK - SUM..].copy_from_slice(&sum.finalize().to_le_bytes());
    block
}

/// Reads the bits of a file that begins with `first`; a block that is damaged has none.
fn read(path: &Path, first: &[u8; BLOCK]) -> Vec<[u8; BLOCK]> {
    let Ok(bytes) = fs::read(path) else { return Vec::new() };
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    let Some((header, blocks)) = blocks.split_first() else { return Vec::new() };
    if header != first {
        return Vec::new();
    }
    let good = |block: &[u8; BLOCK]| {
        let mut bits = *block;
        bits[BLOCK - SUM..].fill(0);
        if sealed(bits, first) == *block { bits } else { [0; BLOCK] }
    };
    blocks.iter().take(MAX_RECORDS as usize / BITS + 1).map(good).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::spool::{Spool, record::Record, tests::Directory};

    /// A segment that the next process finds, with so many records.
    fn left_behind(directory: &Directory, records: u32) -> (Spool, std::sync::Arc<Segment>) {
        let spool = Spool::open(directory.path(), None).unwrap();
        for _ in 0..records {
            let record = Record { at: 0, partition: 0, key: b"k", value: b"{}" };
            spool.append(&mut record.encode().unwrap()).unwrap();
        }
        let mut confirmed = spool.confirmed(&spool.segments()[0]);
        (0..records).step_by(3).for_each(|index| confirmed.insert(index));
        confirmed.write().unwrap();
        drop(spool);
        let spool = Spool::open(directory.path(), None).unwrap();
        let segment = spool.segments()[0].clone();
        (spool, segment)
    }

    fn contained(confirmed: &Confirmed, records: u32) -> Vec<u32> {
        (0..records).filter(|index| confirmed.contains(*index)).collect()
    }

    #[test]
    fn what_is_confirmed_is_known_to_the_next_process() {
        let directory = Directory::new();
        let (spool, segment) = left_behind(&directory, 2_000);
        let mut confirmed = spool.confirmed(&segment);
        let expected: Vec<u32> = (0..2_000).step_by(3).collect();
        assert_eq!(contained(&confirmed, 3_000), expected);
        assert_eq!((confirmed.count(), confirmed.first_missing()), (667, 1));
        // It goes on where it was, in the same file.
        confirmed.insert(1_999);
        confirmed.insert(1);
        confirmed.insert(1);
        confirmed.write().unwrap();
        let confirmed = spool.confirmed(&segment);
        assert_eq!(confirmed.count(), 669);
        assert!(confirmed.contains(1_999) && confirmed.contains(1) && !confirmed.contains(1_000));
    }

    #[test]
    fn another_segment_of_the_same_number_confirms_nothing() {
        let directory = Directory::new();
        let (spool, segment) = left_behind(&directory, 10);
        let kept = fs::read(path_of(segment.path())).unwrap();
        spool.delete(&segment).unwrap();
        drop((spool, segment));
        // The numbers begin anew in a directory that is empty.
        let (spool, segment) = left_behind(&directory, 10);
        assert_eq!(segment.number(), 0);
        assert_eq!(spool.confirmed(&segment).count(), 4);
        fs::write(path_of(segment.path()), kept).unwrap();
        assert_eq!(spool.confirmed(&segment).count(), 0);
    }

    #[test]
    fn nothing_is_confirmed_after_another_start_of_the_machine() {
        let directory = Directory::new();
        let (_spool, segment) = left_behind(&directory, 10);
        assert_eq!(Confirmed::of(&segment, &Boot(Some([b'x'; 36]))).count(), 0);
        assert_eq!(Confirmed::of(&segment, &Boot(None)).count(), 0);
        assert_eq!(Confirmed::of(&segment, &Boot::current()).count(), 4);
    }

    #[test]
    fn what_is_forgotten_stays_forgotten() {
        let directory = Directory::new();
        let (spool, segment) = left_behind(&directory, 10);
        let mut confirmed = spool.confirmed(&segment);
        confirmed.forget().unwrap();
        assert_eq!((confirmed.count(), spool.confirmed(&segment).count()), (0, 0));
        confirmed.insert(7);
        confirmed.write().unwrap();
        assert_eq!(contained(&spool.confirmed(&segment), 10), [7]);
    }

    #[test]
    fn a_file_without_its_segment_is_removed() {
        let directory = Directory::new();
        let (spool, segment) = left_behind(&directory, 10);
        let path = path_of(segment.path());
        fs::remove_file(segment.path()).unwrap();
        drop(spool);
        assert!(path.exists());
        let _spool = Spool::open(directory.path(), None).unwrap();
        assert!(!path.exists());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_damaged_file_confirms_nothing_that_is_not(
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), 1..=255_u8), 1..8),
            cut in any::<proptest::sample::Index>(),
        ) {
            let directory = Directory::new();
            let (spool, segment) = left_behind(&directory, 1_500);
            let path = path_of(segment.path());
            let mut bytes = fs::read(&path).unwrap();
            for (at, flip) in damage {
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
            }
            bytes.truncate(cut.index(bytes.len() * 2) + 1);
            fs::write(&path, bytes).unwrap();
            let confirmed = spool.confirmed(&segment);
            prop_assert!(contained(&confirmed, 3_000).iter().all(|index| index % 3 == 0 && *index < 1_500));
        }
    }
}
