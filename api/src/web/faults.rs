//! Faults in a request's fields, for one answer that names them all.

use service::http::{ApiError, Code};

/// Faults found so far, for one answer that names them all.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<(String, String)>);

impl Faults {
    /// Keeps a fault; a field that is right adds nothing.
    pub(crate) fn note(&mut self, field: &'static str, outcome: Result<(), impl Into<String>>) {
        if let Err(fault) = outcome {
            self.add(field, fault);
        }
    }

    /// Keeps a fault: a predicate such as "must be true or false".
    pub(crate) fn add(&mut self, field: &'static str, fault: impl Into<String>) {
        self.0.push((field.to_owned(), fault.into()));
    }

    /// The answer, when there is a fault.
    pub(crate) fn into_result(self) -> Result<(), ApiError> {
        if self.0.is_empty() { Ok(()) } else { Err(ApiError::invalid_fields(Code::BadRequest, self.0)) }
    }
}

/// Rules of a short text for people: not empty, not too long, no control characters.
pub(crate) fn check_text(text: &str, max_chars: usize) -> Result<(), String> {
    if text.is_empty() || text.chars().count() > max_chars {
        return Err(format!("must have 1 to {max_chars} characters"));
    }
    if text.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    Ok(())
}
