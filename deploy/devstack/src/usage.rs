//! How programs on a command line end when they are used wrongly.

use clap::Parser;

/// The exit code of wrong usage, as sysexits(3) and the services have it.
const USAGE: i32 = 64;

/// Reads the command line. Ends the process with 0 after `--help` and with 64 after wrong usage.
pub fn parse<C: Parser>() -> C {
    C::try_parse().unwrap_or_else(|error| {
        // A reader that went away, as `| head` does, is no fault of ours.
        let _ = error.print();
        std::process::exit(if error.use_stderr() { USAGE } else { 0 })
    })
}
