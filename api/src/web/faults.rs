//! Faults in the fields of a request, reported in one answer.

use service::http::{ApiError, Code};

/// The faults found so far.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<(String, String)>);

impl Faults {
    /// Adds the fault of a checked field, if it has one.
    pub(crate) fn note(&mut self, field: &'static str, outcome: Result<(), impl Into<String>>) {
        if let Err(fault) = outcome {
            self.add(field, fault);
        }
    }

    /// Adds a fault: a predicate such as "must be true or false".
    pub(crate) fn add(&mut self, field: &'static str, fault: impl Into<String>) {
        self.0.push((field.to_owned(), fault.into()));
    }

    /// Returns the error if there is a fault.
    pub(crate) fn into_result(self) -> Result<(), ApiError> {
        if self.0.is_empty() { Ok(()) } else { Err(ApiError::invalid_fields(Code::BadRequest, self.0)) }
    }
}

/// Longest name of anything that has one, in characters.
pub(crate) const MAX_NAME: usize = 200;

/// Checks a name.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    check_text(name, MAX_NAME)
}

/// Checks a short text: not empty, not too long, no control characters.
pub(crate) fn check_text(text: &str, max_chars: usize) -> Result<(), String> {
    if text.is_empty() || text.chars().count() > max_chars {
        return Err(format!("must have 1 to {max_chars} characters"));
    }
    if text.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    Ok(())
}
