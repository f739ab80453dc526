//! Lines for people: results on standard output, progress and errors on standard error.

use std::io::Write as _;

/// Prints a line of the result.
pub(crate) fn say(line: &str) {
    // A reader that went away, as `| head` does, is no fault of ours.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints a line on standard error.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
