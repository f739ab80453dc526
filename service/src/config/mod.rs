//! Configuration from arguments and environment variables, read once at the start of a process.
//!
//! Every setting is a clap argument with a variable, so `--help` is the reference. [`parse`] reports all faults
//! together, each with the name of its variable, and never shows the value of a secret.

mod cidrs;
mod environment;
mod fault;
#[cfg(feature = "kafka")]
mod kafka_properties;
mod key_ring;
mod secret_file;
mod variables;

use std::io::Write as _;
use std::process;
use std::time::Duration;

pub use cidrs::{Cidrs, CidrsFault};
pub use environment::assert_listed;
pub use fault::{Fault, Faults};
#[cfg(feature = "kafka")]
pub(crate) use kafka_properties::{BROKERS, properties};
pub use key_ring::{Key, KeyFault, KeyRing};
pub use variables::VARIABLES;

/// The exit code of a process whose configuration is invalid (`EX_USAGE` of sysexits.h).
pub const EXIT_CONFIGURATION: u8 = 64;

/// Reads the arguments and the environment of this process.
///
/// An empty variable counts as not set. A secret may also be in a file whose path is in `<variable>_FILE`.
/// Ends the process with [`EXIT_CONFIGURATION`] on any fault, and with 0 after `--help` and `--version`.
#[must_use]
pub fn parse<C: clap::Parser>() -> C {
    match environment::read(std::env::args_os(), std::env::vars_os()) {
        Ok(config) => config,
        Err(environment::ReadError::Usage(error)) => {
            let code = if error.use_stderr() { EXIT_CONFIGURATION } else { 0 };
            // A closed terminal leaves nowhere to report to.
            let _ = error.print();
            process::exit(code.into());
        }
        Err(environment::ReadError::Faults(faults)) => {
            // Logging starts after the configuration is read.
            let _ = writeln!(std::io::stderr(), "{faults}");
            process::exit(EXIT_CONFIGURATION.into());
        }
    }
}

/// Parses a duration in seconds, more than 0 and at most a day; a clap value parser.
///
/// # Errors
/// When the text is anything else.
pub fn seconds(text: &str) -> Result<Duration, String> {
    const DAY: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= DAY => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds, more than 0 and at most 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_positive_and_at_most_a_day() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(seconds("86400"), Ok(Duration::from_secs(86_400)));
        for invalid in ["0", "-1", "86401", "NaN", "inf", "", "5s"] {
            assert!(seconds(invalid).is_err(), "{invalid}");
        }
    }
}
