//! Files with passwords or keys.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
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
