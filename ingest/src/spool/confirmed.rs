//! Stores which records of a segment Kafka has confirmed, in a small file beside the segment.
//!
//! With it, a killed edge sends only unconfirmed records again. The file is not synced, so it survives a kill of the
//! process. It is ignored after a reboot: after a power loss a segment is sent again from its beginning, because a
//! Kafka on the same machine may have lost records that it confirmed.
//!
//! The file consists of blocks of 64 bytes, each with a CRC-32 in its last four bytes. The first block identifies the
//! segment and the boot of the machine. Each further block has a bit for each of 480 records; its checksum covers the
//! first block too, so that it is valid in this file only. A damaged block confirms nothing. No block lies across two
//! memory pages, so a kill leaves each block either old or new.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;

use crate::spool::record;
use crate::spool::segment::{self, Segment};

/// The extension of these files.
const EXTENSION: &str = "confirmed";

/// Linux's random id of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The length of a block, and of the checksum in it.
const BLOCK: usize = 64;
const SUM: usize = 4;

/// Records per block.
const BITS: usize = (BLOCK - SUM) * 8;

/// The most records that a segment can have. Bounds the memory for a damaged index.
const MAX_RECORDS: u64 = segment::MAX_BYTES / record::MIN_LEN as u64;

/// The id of the machine's current boot, if known.
#[derive(Debug, Clone)]
pub(super) struct Boot(Option<[u8; 36]>);

impl Boot {
    pub(super) fn current() -> Self {
        let id = fs::read(BOOT_ID).ok();
        Self(id.and_then(|id| id.first_chunk().copied()))
    }

    /// Returns the first block of a segment's file; `None` if the boot or the segment cannot be identified.
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
    /// The first block of the file; without it no file is written.
    first: Option<[u8; BLOCK]>,
    bits: Vec<[u8; BLOCK]>,
    /// The number of confirmed records.
    count: u64,
    /// All records before this index are confirmed.
    from_start: u32,
    /// Blocks that are not yet in the file.
    changed: Range<usize>,
}

impl Confirmed {
    /// Reads a segment's file. A missing or invalid file confirms nothing.
    pub(super) fn read(segment: &Segment, boot: &Boot) -> Self {
        let path = path_of(segment.path());
        let first = boot.block(segment);
        let mut confirmed =
            Self { path, file: None, first, bits: Vec::new(), count: 0, from_start: 0, changed: 0..0 };
        if let Some(first) = first {
            confirmed.bits = read_bits(&confirmed.path, &first);
            confirmed.count = confirmed.bits.iter().map(|block| u64::from(ones(block))).sum();
        }
        confirmed
    }

    /// Returns whether a record is confirmed.
    pub fn contains(&self, index: u32) -> bool {
        let (block, byte, bit) = position(index);
        self.bits.get(block).is_some_and(|block| block[byte] & bit != 0)
    }

    /// Returns the number of confirmed records.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Marks a record as confirmed.
    pub fn insert(&mut self, index: u32) {
        let (block, byte, bit) = position(index);
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

    /// Writes the changes to the file.
    ///
    /// # Errors
    /// When writing fails. After a kill, records that Kafka has confirmed are then sent again.
    pub fn write(&mut self) -> io::Result<()> {
        let (false, Some(first)) = (self.changed.is_empty(), self.first) else { return Ok(()) };
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                // Not truncated, because its blocks are still valid. Blocks of another segment have other checksums.
                let mut options = File::options();
                let file = options.write(true).create(true).truncate(false).mode(0o600).open(&self.path)?;
                file.write_all_at(&first, 0)?;
                none.insert(file)
            }
        };
        let blocks = &self.bits[self.changed.clone()];
        let bytes: Vec<u8> = blocks.iter().flat_map(|block| with_sum(*block, &first)).collect();
        file.write_all_at(&bytes, ((self.changed.start + 1) * BLOCK) as u64)?;
        self.changed = 0..0;
        Ok(())
    }

    /// Removes all confirmations, so that the whole segment is sent again, even after a kill.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn clear(&mut self) -> io::Result<()> {
        self.file = None;
        self.bits.clear();
        self.count = 0;
        self.from_start = 0;
        self.changed = 0..0;
        remove_file(&self.path)
    }
}

/// Removes the file of a segment.
pub(super) fn remove(segment: &Segment) -> io::Result<()> {
    remove_file(&path_of(segment.path()))
}

/// Removes a file of confirmations whose segment no longer exists.
pub(super) fn remove_if_alone(path: &Path) {
    let named = path.extension().is_some_and(|extension| extension == EXTENSION);
    let segment = path.with_extension(segment::EXTENSION);
    if named && Segment::number_of(&segment).is_some() && !segment.exists() {
        // A file that remains is harmless: it is not valid for another segment.
        let _ = remove_file(path);
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn path_of(segment: &Path) -> PathBuf {
    segment.with_extension(EXTENSION)
}

/// Returns the block of a record, the byte in the block and the bit in the byte.
fn position(index: u32) -> (usize, usize, u8) {
    let index = index as usize;
    (index / BITS, index % BITS / 8, 1 << (index % 8))
}

fn ones(block: &[u8; BLOCK]) -> u32 {
    block[..BLOCK - SUM].iter().map(|byte| byte.count_ones()).sum()
}

/// Writes the checksum into the end of a block. It covers the file's first block and this one.
fn with_sum(mut block: [u8; BLOCK], first: &[u8; BLOCK]) -> [u8; BLOCK] {
    let mut sum = Hasher::new();
    sum.update(first);
    sum.update(&block[..BLOCK - SUM]);
    block[BLOCK - SUM..].copy_from_slice(&sum.finalize().to_le_bytes());
    block
}

/// Reads the bits of a file that begins with `first`. A damaged block has no bits set.
fn read_bits(path: &Path, first: &[u8; BLOCK]) -> Vec<[u8; BLOCK]> {
    let Ok(bytes) = fs::read(path) else { return Vec::new() };
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    let Some((header, blocks)) = blocks.split_first() else { return Vec::new() };
    if header != first {
        return Vec::new();
    }
    let checked = |block: &[u8; BLOCK]| {
        let mut bits = *block;
        bits[BLOCK - SUM..].fill(0);
        if with_sum(bits, first) == *block { bits } else { [0; BLOCK] }
    };
    blocks.iter().take(MAX_RECORDS as usize / BITS + 1).map(checked).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::spool::Spool;
    use crate::spool::tests::{Directory, append_at};

    /// Returns a segment of an earlier process with `records` records, of which every third is confirmed.
    fn recovered(directory: &Directory, records: u32) -> (Spool, std::sync::Arc<Segment>) {
        let spool = Spool::open(directory.path(), None).unwrap();
        for _ in 0..records {
            append_at(&spool, 0);
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
    fn the_next_process_reads_the_confirmations() {
        let directory = Directory::new();
        let (spool, segment) = recovered(&directory, 2_000);
        let mut confirmed = spool.confirmed(&segment);
        let expected: Vec<u32> = (0..2_000).step_by(3).collect();
        assert_eq!(contained(&confirmed, 3_000), expected);
        assert_eq!((confirmed.count(), confirmed.first_missing()), (667, 1));
        // The next process continues the same file.
        confirmed.insert(1_999);
        confirmed.insert(1);
        confirmed.insert(1);
        confirmed.write().unwrap();
        let confirmed = spool.confirmed(&segment);
        assert_eq!(confirmed.count(), 669);
        assert!(confirmed.contains(1_999) && confirmed.contains(1) && !confirmed.contains(1_000));
    }

    #[test]
    fn confirmations_of_another_segment_are_ignored() {
        let directory = Directory::new();
        let (spool, segment) = recovered(&directory, 10);
        let kept = fs::read(path_of(segment.path())).unwrap();
        spool.delete(&segment).unwrap();
        drop((spool, segment));
        // Numbers start at 0 again in an empty directory.
        let (spool, segment) = recovered(&directory, 10);
        assert_eq!(segment.number(), 0);
        assert_eq!(spool.confirmed(&segment).count(), 4);
        fs::write(path_of(segment.path()), kept).unwrap();
        assert_eq!(spool.confirmed(&segment).count(), 0);
    }

    #[test]
    fn nothing_is_confirmed_after_a_reboot() {
        let directory = Directory::new();
        let (_spool, segment) = recovered(&directory, 10);
        assert_eq!(Confirmed::read(&segment, &Boot(Some([b'x'; 36]))).count(), 0);
        assert_eq!(Confirmed::read(&segment, &Boot(None)).count(), 0);
        assert_eq!(Confirmed::read(&segment, &Boot::current()).count(), 4);
    }

    #[test]
    fn cleared_confirmations_stay_cleared() {
        let directory = Directory::new();
        let (spool, segment) = recovered(&directory, 10);
        let mut confirmed = spool.confirmed(&segment);
        confirmed.clear().unwrap();
        assert_eq!((confirmed.count(), spool.confirmed(&segment).count()), (0, 0));
        confirmed.insert(7);
        confirmed.write().unwrap();
        assert_eq!(contained(&spool.confirmed(&segment), 10), [7]);
    }

    #[test]
    fn a_file_without_its_segment_is_removed() {
        let directory = Directory::new();
        let (spool, segment) = recovered(&directory, 10);
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
        fn a_damaged_file_confirms_no_other_records(
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), 1..=255_u8), 1..8),
            cut in any::<proptest::sample::Index>(),
        ) {
            let directory = Directory::new();
            let (spool, segment) = recovered(&directory, 1_500);
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
