//! Temporary folders that end with their owner.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Account, Error};

/// The prefix of every name, by which the next process finds folders that were left behind.
const PREFIX: &str = "devstack-";

/// The file in the folder that its owner keeps locked; the kernel unlocks it however the owner ends.
const LOCK: &str = ".owner";

/// A temporary folder, removed on drop.
///
/// When its owner is killed, the next process that creates one removes it.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    // Holds the lock.
    _lock: File,
}

impl Scratch {
    /// Creates an empty folder that other accounts may enter but not list.
    ///
    /// # Errors
    /// [`Error::File`] when the folder cannot be created.
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
                // An earlier process with the same id left it behind.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Error::file("create", &folder)(error)),
            }
            let path = folder.join(LOCK);
            let lock = File::create(&path).map_err(Error::file("create", &path))?;
            // Another sweep may have locked it before, and then removes the folder, or has removed it already.
            if lock.try_lock().is_ok() && path.exists() {
                return Ok(Self { folder, _lock: lock });
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
        // After a failure the next sweep tries again.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes the scratch folders whose owners have ended.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_scratch = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry
                .metadata()
                .is_ok_and(|found| found.is_dir() && found.uid() == nix::unistd::getuid().as_raw());
        if !is_scratch {
            continue;
        }
        // A folder without a lock file is being created.
        if let Ok(lock) = File::open(entry.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_folder_is_removed() {
        let scratch = Scratch::new("dropped").unwrap();
        let path = scratch.path().to_path_buf();
        fs::write(path.join("file"), "content").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn no_folder_is_lost_to_the_sweeps_of_others() {
        let parent = Scratch::new("many").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let scratch = Scratch::within(parent.path(), "one").unwrap();
                        assert!(scratch.path().exists());
                    }
                });
            }
        });
    }

    #[test]
    fn the_sweep_removes_only_folders_without_an_owner() {
        let parent = Scratch::new("parent").unwrap();
        let orphan = parent.path().join("devstack-orphan-1-1");
        fs::create_dir(&orphan).unwrap();
        File::create(orphan.join(LOCK)).unwrap();
        let owned = Scratch::within(parent.path(), "owned").unwrap();
        assert!(!orphan.exists());
        let _other = Scratch::within(parent.path(), "other").unwrap();
        assert!(owned.path().exists());
    }
}
