//! Faults in a request's fields, for one answer that names them all.

use service::http::{ApiError, FieldError};

/// Faults found so far, for one answer that names them all.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<FieldError>);

impl Faults {
    /// Keeps a fault; a field that is right adds nothing.
    pub(crate) fn note(&mut self, field: &'static str, outcome: Result<(), impl Into<String>>) {
        if let Err(message) = outcome {
            self.add(field, message);
        }
    }

    /// Keeps a fault whose message was made for it.
    pub(crate) fn add(&mut self, field: &'static str, message: impl Into<String>) {
        self.0.push(FieldError { field: field.to_owned(), message: message.into() });
    }

    /// The answer, when there is a fault.
    pub(crate) fn into_result(self) -> Result<(), ApiError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let message = match self.0.as_slice() {
            [only] => format!("{} {}", only.field, only.message),
            more => format!("{} fields are not valid", more.len()),
        };
        let error = ApiError::bad_request(message);
        Err(self.0.into_iter().fold(error, |error, fault| error.with_detail(fault.field, fault.message)))
    }
}

/// Rules of a short text for people: not empty, not too long, no control characters.
pub(crate) fn check_text(text: &str, max_chars: usize) -> Result<(), String> {
    if text.is_empty() || text.chars().count() > max_chars {
        return Err(format!("must have 1 to {max_chars} characters"));
    }
    if text.chars().any(char::is_control) {
        return Err("must have no control characters".to_owned());
    }
    Ok(())
}
