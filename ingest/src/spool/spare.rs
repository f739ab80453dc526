//! A file that is ready to become the next segment.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
};

use super::header;

/// What such files end in.
const EXTENSION: &str = "spare";

/// A file with a header and zeroes, all of which the disk has promised; removed unless it is used.
#[derive(Debug)]
pub(super) struct Spare {
    number: u64,
    nonce: u64,
    bytes: u64,
    path: PathBuf,
    /// Gone when it is in use.
    file: Option<File>,
}

impl Spare {
    /// Makes a file of that size for the segment of that number.
    ///
    /// The disk allocates it here and now, so that no click waits for that, or fails because it cannot be.
    pub(super) fn create(directory: &Path, number: u64, bytes: u64) -> io::Result<Self> {
        let path = directory.join(format!("{number:020}.{EXTENSION}"));
        let file = File::options().write(true).create(true).truncate(true).open(&path)?;
        let nonce = rand::random();
        // From here on a failure removes the file.
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

    /// Gives the file its final name, which nothing may have yet.
    pub(super) fn rename(mut self, path: &Path) -> io::Result<File> {
        // One process writes here; this tells what others have put in the way.
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::rename(&self.path, path)?;
        self.file.take().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Removes those that a former process has left in a directory.
    pub(super) fn remove_if_one(path: &Path) {
        let numbered =
            path.file_stem().and_then(OsStr::to_str).is_some_and(|stem| stem.parse::<u64>().is_ok());
        if numbered && path.extension().is_some_and(|extension| extension == EXTENSION) && path.is_file() {
            // What stays is written anew when its number comes.
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if self.file.is_some() {
            // The next start removes it otherwise.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Gives a file its size and its place on the disk.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let len = i64::try_from(bytes).map_err(io::Error::other)?;
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        // Not every file system can; a write that the disk refuses ends the segment there.
        Err(Errno::EOPNOTSUPP) => file.set_len(bytes),
        done => Ok(done?),
    }
}
