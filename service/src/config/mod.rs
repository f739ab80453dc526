//! Configuration from the environment, read once when a process starts.
//!
//! Every setting is a clap argument with a variable behind it, so `--help` is the reference. [`parse`] reports
//! every fault in one go, each under the name of its variable, and never shows the value of a secret.

mod cidrs;
mod environment;
mod key_ring;

use std::{fmt, io::Write as _, process, time::Duration};

pub use cidrs::{Cidrs, CidrsFault};
pub use environment::{VARIABLES, assert_listed};
pub use key_ring::{Key, KeyFault, KeyRing};

/// The exit code of a process that cannot run as configured (`EX_USAGE` of sysexits.h).
pub const EXIT_CONFIGURATION: u8 = 64;

/// One setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The variable at fault.
    pub variable: String,
    /// What is wrong with it, without the value of a secret.
    pub message: String,
}

impl Fault {
    /// Names a variable and what is wrong with it.
    pub fn new(variable: impl Into<String>, message: impl Into<String>) -> Self {
        Self { variable: variable.into(), message: message.into() }
    }
}

/// Everything that is wrong with the configuration; an error that ends a process with
/// [`EXIT_CONFIGURATION`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Returns the faults, in the order in which `--help` lists their settings.
    #[must_use]
    pub fn as_slice(&self) -> &[Fault] {
        &self.0
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Fault { variable, message }) in self.0.iter().enumerate() {
            let line_break = if index == 0 { "" } else { "\n" };
            write!(formatter, "{line_break}{variable}: {message}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Reads the arguments and the environment of this process.
///
/// An empty variable counts as not set. A secret may also stand in a file that `<variable>_FILE` names.
/// Ends the process with [`EXIT_CONFIGURATION`] on any fault, and with 0 after `--help` and `--version`.
#[must_use]
pub fn parse<C: clap::Parser>() -> C {
    match environment::read(std::env::args_os(), std::env::vars_os()) {
        Ok(config) => config,
        Err(environment::Refusal::Usage(error)) => {
            let code = if error.use_stderr() { EXIT_CONFIGURATION } else { 0 };
            // Nobody is left to tell when the terminal is gone.
            let _ = error.print();
            process::exit(code.into());
        }
        Err(environment::Refusal::Faults(faults)) => {
            // Logging starts only after the configuration is known.
            let _ = writeln!(std::io::stderr(), "{faults}");
            process::exit(EXIT_CONFIGURATION.into());
        }
    }
}

/// Reads a time span of whole or decimal seconds, more than 0 and at most a day; for clap.
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
        for refused in ["0", "-1", "86401", "NaN", "inf", "", "5s"] {
            assert!(seconds(refused).is_err(), "{refused}");
        }
    }
}
