//! The account for a server that refuses to run as root.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use nix::unistd::{User, geteuid};

use crate::Error;

/// A user and group of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The user name.
    pub name: String,
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

impl Account {
    /// Returns the account for Postgres when this process runs as root; `None` when the current account can run it.
    ///
    /// # Errors
    /// [`Error::Missing`] for root when the machine has neither `postgres` nor `nobody`.
    pub fn unprivileged() -> Result<Option<Self>, Error> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        let found = ["postgres", "nobody"].into_iter().find_map(|name| User::from_name(name).ok().flatten());
        match found {
            Some(user) => Ok(Some(Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() })),
            None => Err(Error::Missing {
                what: "an account for Postgres, which refuses to run as root".to_owned(),
                remedy: "create a user named postgres".to_owned(),
            }),
        }
    }

    /// Returns whether the account may enter `path` and its parents; folders that do not exist yet count as open.
    pub fn reaches(&self, path: &Path) -> bool {
        path.ancestors().filter_map(|folder| fs::metadata(folder).ok()).all(|folder| {
            let mode = folder.permissions().mode();
            let passes = if folder.uid() == self.uid {
                mode & 0o100
            } else if folder.gid() == self.gid {
                mode & 0o010
            } else {
                mode & 0o001
            };
            passes != 0
        })
    }

    /// Creates a folder, and its parents, that belongs to the account and that others cannot enter.
    ///
    /// # Errors
    /// [`Error::File`] when the folder cannot be created or changed.
    pub fn create_folder(&self, folder: &Path) -> Result<(), Error> {
        fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
        chown(folder, Some(self.uid), Some(self.gid)).map_err(Error::file("change the owner of", folder))?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
            .map_err(Error::file("set the mode of", folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_closed_parent_folder_is_not_reachable() {
        let scratch = Scratch::new("reach").unwrap();
        let stranger = Account { name: "stranger".to_owned(), uid: 54_321, gid: 54_321 };
        let inner = scratch.path().join("inner");
        fs::create_dir(&inner).unwrap();
        assert!(stranger.reaches(&inner.join("missing")));
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!stranger.reaches(&inner.join("missing")));
    }
}
