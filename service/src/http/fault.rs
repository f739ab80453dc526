//! Finds out why a text is not the JSON of a type.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use super::decode::Input;
use super::{ApiError, decode, syntax};

/// Returns the error for why a text is not a `T`.
pub(super) fn error<T: DeserializeOwned>(
    input: Input,
    text: &[u8],
    path: &Path,
    cause: &serde_json::Error,
) -> ApiError {
    let message = without_position(cause);
    let mut field = path.to_string();
    if cause.is_data() {
        let Some(Segment::Enum { variant }) =
            path.iter().next_back().filter(|_| message.ends_with(", expected unit"))
        else {
            return decode::error(input, &field, &message);
        };
        // An object with one of the enum's names as its field.
        field = field.strip_suffix(variant).unwrap_or(&field).trim_end_matches('.').to_owned();
    } else if let Err(fault) = serde_json::from_slice::<IgnoredAny>(text) {
        return syntax::error(input, text, &fault);
    } else if message == "number out of range" {
        return decode::error(input, &field, &message);
    } else if message != "expected value" {
        // It is JSON by its grammar, but has a string that is no text.
        return syntax::error(input, text, cause);
    }
    // The parser reports anything but a string in place of an enum's name as a syntax error, and without the names.
    let names =
        enum_fault::<T>(text, path).unwrap_or_else(|| "invalid type: a value, expected a string".to_owned());
    decode::error(input, &field, &names)
}

/// Returns the message of serde about an enum at a path, which lists its names: that for an empty string in its place.
fn enum_fault<T: DeserializeOwned>(text: &[u8], path: &Path) -> Option<String> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    let mut place = &mut value;
    for segment in path {
        place = match segment {
            Segment::Map { key } => place.get_mut(key)?,
            Segment::Seq { index } => place.get_mut(index)?,
            Segment::Enum { .. } => break,
            Segment::Unknown => return None,
        };
    }
    *place = Value::String(String::new());
    // Fields before this one were valid.
    let message = T::deserialize(value).err()?.to_string();
    message.starts_with("unknown variant ``").then_some(message)
}

/// Returns the message of a parser without " at line 1 column 2".
fn without_position(error: &serde_json::Error) -> String {
    let mut message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    message.truncate(message.strip_suffix(&position).unwrap_or(&message).len());
    message
}
