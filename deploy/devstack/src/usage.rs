//! Parsing of command lines.

use clap::Parser;

/// The exit code of wrong usage, by sysexits(3), as in the services.
const USAGE: i32 = 64;

/// Parses the command line. Exits with 0 after `--help` and with 64 after wrong usage.
pub fn parse<C: Parser>() -> C {
    C::try_parse().unwrap_or_else(|error| {
        // Fails when the reader is gone, as with `| head`.
        let _ = error.print();
        std::process::exit(if error.use_stderr() { USAGE } else { 0 })
    })
}
