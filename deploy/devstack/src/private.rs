//! Files and folders that only their owner can read.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use crate::Error;

/// Writes a file that only its owner can read, from its creation on.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    // Its mode would stay.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::file("replace", path)(error)),
        _ => {}
    }
    let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::file("write", path))
}

/// Creates a folder that only its owner can enter, and its parents as usual; also closes one that exists.
///
/// # Errors
/// [`Error::File`] when the folder cannot be created or changed.
pub fn create_folder(folder: &Path) -> Result<(), Error> {
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let closed = fs::set_permissions(folder, Permissions::from_mode(0o700));
            closed.map_err(Error::file("set the mode of", folder))
        }
        created => created.map_err(Error::file("create", folder)),
    }
}
