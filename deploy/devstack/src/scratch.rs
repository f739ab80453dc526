//! Temporary folders that are gone when their owner is.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Account, Error};

/// What every scratch folder's name starts with, so that the next process finds those left behind.
const PREFIX: &str = "devstack-";

/// The file in it that its owner holds locked; the kernel unlocks it however the owner ends.
const LOCK: &str = ".owner";

/// A temporary folder, removed on drop.
///
/// One whose owner was killed is removed by the next process that makes one.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    // Held for its lock only.
    _owner: File,
}

impl Scratch {
    /// Makes an empty folder that other accounts may pass through but not list.
    ///
    /// # Errors
    /// [`Error::File`] when the folder cannot be made.
    pub fn new(name: &str) -> Result<Self, Error> {
        // Postgres, which does not run as root, must be able to enter it.
        let account = Account::unprivileged()?;
        let enters = |folder: &PathBuf| account.as_ref().is_none_or(|account| account.reaches(folder));
        let parent = Some(std::env::temp_dir()).filter(enters).unwrap_or_else(|| PathBuf::from("/tmp"));
        Self::within(&parent, name)
    }

    fn within(parent: &Path, name: &str) -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        sweep(parent);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let folder = parent.join(format!("{PREFIX}{name}-{}-{count}", std::process::id()));
            match fs::DirBuilder::new().mode(0o711).create(&folder) {
                Ok(()) => {}
                // A predecessor with our process id left it; the sweep takes it once it is old.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Error::file("create", &folder)(error)),
            }
            let lock = folder.join(LOCK);
            let owner = File::create(&lock).map_err(Error::file("create", &lock))?;
            // Another process's sweep may hold it for a moment, and then removes the folder: take another.
            if owner.try_lock().is_ok() {
                return Ok(Self { folder, _owner: owner });
            }
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done about a failure here; the next sweep tries again.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes the scratch folders of owners that are gone.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry
                .metadata()
                .is_ok_and(|found| found.is_dir() && found.uid() == nix::unistd::getuid().as_raw());
        if !ours {
            continue;
        }
        // A folder without a lock file is being made at this moment.
        if let Ok(lock) = File::open(entry.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_folder_is_gone() {
        let scratch = Scratch::new("dropped").unwrap();
        let path = scratch.path().to_path_buf();
        fs::write(path.join("file"), "content").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_left_behind_is_swept_and_a_living_one_stays() {
        let parent = Scratch::new("parent").unwrap();
        let left = parent.path().join("devstack-left-1-1");
        fs::create_dir(&left).unwrap();
        File::create(left.join(LOCK)).unwrap();
        let living = Scratch::within(parent.path(), "living").unwrap();
        assert!(!left.exists());
        let _other = Scratch::within(parent.path(), "other").unwrap();
        assert!(living.path().exists());
    }
}
