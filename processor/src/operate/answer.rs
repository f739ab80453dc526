//! What a command prints.

use std::fmt;

use serde::Serialize;

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// For standard output.
    pub text: String,
    /// The exit code.
    pub code: u8,
}

impl Answer {
    pub(super) fn new<T: Serialize + fmt::Display>(value: &T, json: bool) -> anyhow::Result<Self> {
        let text = if json { serde_json::to_string(value)? } else { value.to_string() };
        Ok(Self { text, code: 0 })
    }
}
