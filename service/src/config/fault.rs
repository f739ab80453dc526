//! Faults of a configuration.

use std::fmt;

/// An invalid or missing setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The name of the variable.
    pub variable: String,
    /// The problem, without the value of a secret.
    pub message: String,
}

impl Fault {
    /// Returns a fault of a variable.
    pub fn new(variable: impl Into<String>, message: impl Into<String>) -> Self {
        Self { variable: variable.into(), message: message.into() }
    }
}

/// All faults of a configuration: the error that ends a process with [`EXIT_CONFIGURATION`](super::EXIT_CONFIGURATION).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub(super) Vec<Fault>);

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
