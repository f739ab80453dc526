//! A spare file: prepared to become the next segment.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::spool::header;

/// The extension of spare files.
const EXTENSION: &str = "spare";

/// A file with a header and zeroes, fully allocated on the disk. Removed on drop unless it was renamed.
#[derive(Debug)]
pub(super) struct Spare {
    number: u64,
    nonce: u64,
    bytes: u64,
    path: PathBuf,
    /// `None` after the rename.
    file: Option<File>,
}

impl Spare {
    /// Creates a file of `bytes` bytes for the segment with this number.
    ///
    /// Allocates the space now, so that appending a click neither waits for the allocation nor fails because of it.
    pub(super) fn create(directory: &Path, number: u64, bytes: u64) -> io::Result<Self> {
        let path = directory.join(format!("{number:020}.{EXTENSION}"));
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let nonce = rand::random();
        // Created here, so that an error below removes the file.
        let spare = Self { number, nonce, bytes, path, file: Some(file) };
        if let Some(file) = &spare.file {
            allocate(file, bytes)?;
            file.write_all_at(&header::encode(nonce), 0)?;
        }
        Ok(spare)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn nonce(&self) -> u64 {
        self.nonce
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Renames the file to its final name. Fails if a file with that name exists.
    pub(super) fn rename(mut self, path: &Path) -> io::Result<File> {
        // Not atomic, but only this process creates segments here.
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::rename(&self.path, path)?;
        self.file.take().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Removes a file if it is a spare of an earlier process.
    pub(super) fn remove_if_one(path: &Path) {
        let numbered =
            path.file_stem().and_then(OsStr::to_str).is_some_and(|stem| stem.parse::<u64>().is_ok());
        if numbered && path.extension().is_some_and(|extension| extension == EXTENSION) && path.is_file() {
            // If it cannot be removed, it is overwritten when its number is used.
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if self.file.is_some() {
            // If it cannot be removed, the next start removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Sets a file's size and allocates it on the disk.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let len = i64::try_from(bytes).map_err(io::Error::other)?;
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        // Not all file systems support it. Without allocation a write may fail, which ends the segment.
        Err(Errno::EOPNOTSUPP) => file.set_len(bytes),
        done => Ok(done?),
    }
}
