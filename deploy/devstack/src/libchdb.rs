//! The ClickHouse server that an npm package ships as a shared library.
//!
//! The library is the whole server behind one function. It runs in a separate child process, a mode of the
//! `devstack` program: it installs signal handlers and threads for a process, and it must be possible to kill it.

use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use libloading::{Library, Symbol};

use crate::{Cause, Error};

/// The first argument that turns the `devstack` program into ClickHouse.
pub const SUBCOMMAND: &str = "run-libchdb";

/// The library's entry: the arguments of a command line, and a result that we have no use for.
type Entry = unsafe extern "C" fn(c_int, *mut *mut c_char) -> *mut c_void;

/// Becomes the ClickHouse server; returns when it has stopped.
///
/// # Errors
/// What keeps the library from being loaded.
pub fn run(library: &Path, arguments: impl IntoIterator<Item = OsString>) -> Result<(), Cause> {
    let mut texts = vec![CString::from(c"clickhouse")];
    for argument in arguments {
        texts.push(CString::new(argument.into_vec())?);
    }
    let mut pointers: Vec<*mut c_char> = texts.iter().map(|text| text.as_ptr().cast_mut()).collect();
    let count = c_int::try_from(pointers.len())?;
    // The C convention: the list ends with a null, which the count leaves out.
    pointers.push(std::ptr::null_mut());
    // SAFETY: the file is the pinned package's library, whose initialisers are meant to run in any process; the
    // symbol has this signature at the pinned version; the strings outlive the call.
    #[allow(unsafe_code)]
    unsafe {
        let library = Library::new(library)?;
        let entry: Symbol<'_, Entry> = library.get(c"query_stable_v2")?;
        entry(count, pointers.as_mut_ptr());
    }
    Ok(())
}

/// Finds the `devstack` program: `DEVSTACK_BIN`, else beside the running program or one folder up, where cargo puts
/// programs as seen from tests.
///
/// # Errors
/// [`Error::Missing`] with the command that builds it.
pub fn devstack_program() -> Result<PathBuf, Error> {
    if let Some(given) = std::env::var_os("DEVSTACK_BIN") {
        return Ok(given.into());
    }
    let here = std::env::current_exe().map_err(Error::file("find", Path::new("the running program")))?;
    let found =
        here.ancestors().skip(1).take(2).map(|folder| folder.join("devstack")).find(|file| file.is_file());
    found.ok_or_else(|| Error::Missing {
        what: "the program devstack, which runs ClickHouse,".to_owned(),
        remedy: "build it with `cargo build -p devstack --bin devstack`, or name it in DEVSTACK_BIN"
            .to_owned(),
    })
}
