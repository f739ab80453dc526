//! Turns serde's errors into messages for callers.

use super::ApiError;

/// Returns the error for serde's `message` about the field at `path`, or about the whole value when that is `.`.
///
/// Serde's texts are recognized but never returned: they have positions and names of Rust types.
pub(super) fn error(path: &str, message: &str) -> ApiError {
    let path = if path == "." { "" } else { path };
    let named = message.split('`').nth(1).unwrap_or_default();
    let field_of_path = || match path {
        "" => named.to_owned(),
        // The path ends with the field when the parser was inside it.
        path if path == named || path.ends_with(&format!(".{named}")) => path.to_owned(),
        path => format!("{path}.{named}"),
    };
    let (field, fault) = if message.starts_with("unknown field") {
        (field_of_path(), "is not a known field".to_owned())
    } else if message.starts_with("missing field") {
        (field_of_path(), "is required".to_owned())
    } else if message.starts_with("duplicate field") {
        (field_of_path(), "must be given only once".to_owned())
    } else {
        (path.to_owned(), predicate(message))
    };
    if field.is_empty() {
        return ApiError::bad_request("The body must be a JSON object.");
    }
    ApiError::invalid_field(field, fault)
}

/// Returns the problem with a value as a predicate.
fn predicate(message: &str) -> String {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    let expected = message.rsplit_once("expected ").map(|(_, expected)| expected);
    if message.starts_with("unknown variant") {
        return expected.map_or_else(not_valid, |known| format!("must be {}", known.replace('`', "")));
    }
    let kind = match expected {
        Some("a string" | "a borrowed string" | "str") => "a string",
        Some("a boolean") => "true or false",
        Some("a sequence") => "a list",
        Some("a map") => "an object",
        Some(expected) if expected.starts_with("struct ") => "an object",
        Some(expected) if is_number(expected) => "a number",
        None if message.ends_with("was not `true` or `false`") => "true or false",
        None if message.contains("invalid digit") || message.starts_with("number too") => "a number",
        _ => return not_valid(),
    };
    format!("must be {kind}")
}

fn not_valid() -> String {
    "is not valid".to_owned()
}

/// Returns whether `expected` is the name of a number type, such as `i16`.
fn is_number(expected: &str) -> bool {
    expected.strip_prefix(['i', 'u', 'f']).is_some_and(|bits| bits == "size" || bits.parse::<u8>().is_ok())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::Deserialize;
    use serde::de::DeserializeOwned;

    use super::super::{parse_json, parse_query};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    #[derive(Default)]
    #[allow(dead_code)]
    struct Everything {
        text: String,
        flag: bool,
        count: i16,
        amount: f64,
        list: Vec<Inner>,
        map: HashMap<String, u64>,
        kind: Kind,
        when: Option<std::net::IpAddr>,
        pair: (u8, u8),
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Inner {
        name: String,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        #[default]
        Off,
        Append,
    }

    fn error_message<T: DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
        parse_json::<T>(text.as_bytes()).unwrap_err().message().to_owned()
    }

    #[test]
    fn no_message_comes_from_serde() {
        for (text, message) in [
            (r#"{"text":3}"#, "Text must be a string."),
            (r#"{"text":null}"#, "Text must be a string."),
            (r#"{"flag":"yes"}"#, "Flag must be true or false."),
            (r#"{"count":"1"}"#, "Count must be a number."),
            (r#"{"count":70000}"#, "Count must be a number."),
            (r#"{"count":1.5}"#, "Count must be a number."),
            (r#"{"amount":[]}"#, "Amount must be a number."),
            (r#"{"list":{}}"#, "List must be a list."),
            (r#"{"list":[{"name":"a"},3]}"#, "List[1] must be an object."),
            (r#"{"list":[{}]}"#, "List[0].name is required."),
            (r#"{"list":[{"name":"a","x":1}]}"#, "List[0].x is not a known field."),
            (r#"{"map":[]}"#, "Map must be an object."),
            (r#"{"map":{"a":"b"}}"#, "Map.a must be a number."),
            (r#"{"kind":"maybe"}"#, "Kind must be off or append."),
            (r#"{"kind":1}"#, "Kind is not valid."),
            (r#"{"when":"soon"}"#, "When is not valid."),
            (r#"{"pair":[1]}"#, "Pair is not valid."),
        ] {
            assert_eq!(error_message::<Everything>(text), message, "{text}");
        }
        let query = parse_query::<Everything>("flag=yes").unwrap_err();
        assert_eq!(query.message(), "Flag must be true or false.");
    }
}
