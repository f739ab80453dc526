//! The spool's size on the disk and its limit.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::statvfs::statvfs;

use crate::spool::segment;

/// The smallest allowed limit.
pub const MIN_BYTES: u64 = 4 * segment::MIN_BYTES;

/// The largest default limit.
const DEFAULT_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// The default limit is the free disk space divided by this.
const DEFAULT_SHARE: u64 = 5;

/// The size of one spool. A file counts from before it is created until after it is deleted.
#[derive(Debug)]
pub(super) struct Size {
    max: u64,
    used: AtomicU64,
}

impl Size {
    /// Creates the size with a limit of `max`, by default a share of the free disk. `used` is the size of existing
    /// files.
    pub(super) fn new(directory: &Path, max: Option<u64>, used: u64) -> io::Result<Self> {
        let max = match max {
            Some(max) => max,
            // The spool's own files count as free.
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

    /// Returns the size of a new segment. At least four fit into the limit.
    pub(super) fn segment(&self) -> u64 {
        (self.max / 8).clamp(segment::MIN_BYTES, segment::MAX_BYTES)
    }

    /// Reserves `bytes` and returns whether they were available.
    pub(super) fn reserve(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(super) fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
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
    fn the_default_is_a_fifth_of_the_free_disk_up_to_4_gib() {
        const GIB: u64 = 1024 * 1024 * 1024;
        assert_eq!(default(100 * GIB), 4 * GIB);
        assert_eq!(default(20 * GIB), 4 * GIB);
        assert_eq!(default(10 * GIB), 2 * GIB);
        assert_eq!(default(0), MIN_BYTES);
    }

    #[test]
    fn nothing_above_the_limit_is_reserved() {
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
