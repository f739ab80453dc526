//! Files of secrets: `<variable>_FILE` names a file with the value of a variable.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;

use super::fault::Fault;
use super::variables::FILE_SUFFIX;

/// Returns the variable that names the file of a variable's value, and the file's path, if it is set.
pub(super) fn of<'a>(
    variable: &str,
    variables: &'a BTreeMap<OsString, OsString>,
) -> Option<(String, &'a OsStr)> {
    let file = format!("{variable}{FILE_SUFFIX}");
    let path = variables.get(OsStr::new(&file))?;
    Some((file, path))
}

/// Reads a secret, which ends before the line breaks at the end of its file.
///
/// # Errors
/// With the reason, also when there is no secret in the file.
pub(super) fn read(path: &OsStr) -> Result<String, String> {
    let content =
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    match content.trim_end_matches(['\n', '\r']) {
        "" => Err(format!("{} is empty", path.display())),
        secret => Ok(secret.to_owned()),
    }
}

/// Returns the fault of a secret that is given as such and in a file.
pub(super) fn set_twice(variable: &str) -> Fault {
    Fault::new(variable, format!("set together with {variable}{FILE_SUFFIX}; keep one of them"))
}
