//! How much of the disk the spool takes, and how much it may.

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::sys::statvfs::statvfs;

use super::{MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES};

/// The least that a spool may be limited to.
pub const MIN_BYTES: u64 = 4 * MIN_SEGMENT_BYTES;

/// What it is limited to where nothing else is said, at most.
const DEFAULT_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Which part of the free disk it is limited to then: one in so many bytes.
const DEFAULT_SHARE: u64 = 5;

/// The size of one spool. Files count from before they are made until after they are gone.
#[derive(Debug)]
pub(super) struct Size {
    max: u64,
    used: AtomicU64,
}

impl Size {
    /// Begins with what a former process left.
    pub(super) fn new(directory: &Path, max: Option<u64>, used: u64) -> io::Result<Self> {
        let max = match max {
            Some(max) => max,
            // What the spool itself takes is free to it.
            None => default(free(directory)?.saturating_add(used)),
        };
        Ok(Self { max, used: AtomicU64::new(used) })
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the size of a new segment: small enough that a few fit.
    pub(super) fn segment(&self) -> u64 {
        (self.max / 8).clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
    }

    /// Takes so many bytes, if that many are left.
    pub(super) fn reserve(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(super) fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Returns what a file takes on the disk, in bytes; 0 for what is no file.
pub(super) fn of(path: &Path) -> u64 {
    path.symlink_metadata().map_or(0, |file| if file.is_file() { file.len() } else { 0 })
}

fn default(free: u64) -> u64 {
    (free / DEFAULT_SHARE).clamp(MIN_BYTES, DEFAULT_BYTES)
}

fn free(directory: &Path) -> io::Result<u64> {
    let disk = statvfs(directory)?;
    Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_fifth_of_the_free_disk_and_at_most_four_gibibytes() {
        const GIB: u64 = 1024 * 1024 * 1024;
        assert_eq!(default(100 * GIB), 4 * GIB);
        assert_eq!(default(20 * GIB), 4 * GIB);
        assert_eq!(default(10 * GIB), 2 * GIB);
        assert_eq!(default(0), MIN_BYTES);
    }

    #[test]
    fn no_byte_above_the_limit_is_given_out() {
        let size = Size::new(Path::new("/"), Some(MIN_BYTES), 1).unwrap();
        assert!(!size.reserve(MIN_BYTES));
        assert!(size.reserve(MIN_BYTES - 1));
        assert!(!size.reserve(1) && !size.reserve(u64::MAX));
        size.release(MIN_BYTES - 1);
        assert_eq!(size.used(), 1);
    }

    #[test]
    fn at_least_four_segments_fit() {
        for max in [MIN_BYTES, 10 * MIN_BYTES, DEFAULT_BYTES] {
            let size = Size::new(Path::new("/"), Some(max), 0).unwrap();
            assert!(4 * size.segment() <= max, "{max}");
        }
    }
}
