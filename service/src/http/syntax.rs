//! Says why a text is not JSON, in words for callers.

use super::ApiError;
use super::decode::Input;

/// What the parser says of a text that is not JSON, and what callers are told. Its texts have no part of the text.
const REASONS: [(&str, &str); 18] = [
    ("EOF while parsing a list", "it ends within a list"),
    ("EOF while parsing an object", "it ends within an object"),
    ("EOF while parsing a string", "it ends within a string"),
    ("EOF while parsing a value", "it ends where a value must be"),
    ("expected `:`", "a colon is missing"),
    ("expected `,` or `]`", "a comma or ] is missing"),
    ("expected `,` or `}`", "a comma or } is missing"),
    ("expected ident", "only true, false and null are words"),
    ("expected value", "a value is missing"),
    ("invalid escape", "a string has an unknown escape"),
    ("invalid number", "a number has another form"),
    ("number out of range", "a number is out of range"),
    ("control character (\\u0000-\\u001F) found while parsing a string", "a string has a control character"),
    ("key must be a string", "a name must be in double quotes"),
    ("lone leading surrogate in hex escape", "a string has half of a surrogate pair"),
    ("unexpected end of hex escape", "a string has half of a surrogate pair"),
    ("trailing comma", "a comma has nothing behind it"),
    ("trailing characters", "there is more behind the value"),
];

/// Returns the error for a body that is not JSON.
pub fn invalid_json(body: &[u8], fault: &serde_json::Error) -> ApiError {
    error(Input::Body, body, fault)
}

/// Returns the error for a text that is not JSON, with the place.
pub(super) fn error(input: Input, text: &[u8], fault: &serde_json::Error) -> ApiError {
    let name = input.name();
    if text.trim_ascii().is_empty() {
        return ApiError::bad_request(format!("The {name} is empty."));
    }
    if std::str::from_utf8(text).is_err() {
        return ApiError::bad_request(format!("The {name} is not UTF-8."));
    }
    let message = fault.to_string();
    if message.starts_with("recursion limit exceeded") {
        return ApiError::bad_request(format!(
            "The {name} has too many lists and objects within each other."
        ));
    }
    let reason = REASONS.iter().find(|(theirs, _)| message.starts_with(theirs));
    let reason = reason.map(|(_, ours)| format!(": {ours}")).unwrap_or_default();
    let (line, column) = (fault.line(), fault.column());
    ApiError::bad_request(format!("The {name} is not valid JSON in line {line}, column {column}{reason}."))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_error_has_the_place_and_the_reason() {
        for (text, message) in [
            ("{", "The body is not valid JSON in line 1, column 1: it ends within an object."),
            ("[1,\n", "The body is not valid JSON in line 2, column 0: it ends where a value must be."),
            ("[1", "The body is not valid JSON in line 1, column 2: it ends within a list."),
            (r#"{"a"#, "The body is not valid JSON in line 1, column 3: it ends within a string."),
            (r#"{"a" 1}"#, "The body is not valid JSON in line 1, column 6: a colon is missing."),
            (r#"[1 2]"#, "The body is not valid JSON in line 1, column 4: a comma or ] is missing."),
            (
                "{\"a\":1\n\"b\":2}",
                "The body is not valid JSON in line 2, column 1: a comma or } is missing.",
            ),
            ("[tru]", "The body is not valid JSON in line 1, column 5: only true, false and null are words."),
            (r#"{"a":}"#, "The body is not valid JSON in line 1, column 6: a value is missing."),
            ("\u{feff}{}", "The body is not valid JSON in line 1, column 1: a value is missing."),
            (r#"["\x"]"#, "The body is not valid JSON in line 1, column 4: a string has an unknown escape."),
            ("[01]", "The body is not valid JSON in line 1, column 3: a number has another form."),
            ("[1e999]", "The body is not valid JSON in line 1, column 6: a number is out of range."),
            ("[\"\t\"]", "The body is not valid JSON in line 1, column 3: a string has a control character."),
            ("{a:1}", "The body is not valid JSON in line 1, column 2: a name must be in double quotes."),
            (
                r#"["\ud800"]"#,
                "The body is not valid JSON in line 1, column 9: a string has half of a surrogate pair.",
            ),
            (
                r#"["\ud800\u0041"]"#,
                "The body is not valid JSON in line 1, column 14: a string has half of a surrogate pair.",
            ),
            ("[1,]", "The body is not valid JSON in line 1, column 4: a comma has nothing behind it."),
            ("{} {}", "The body is not valid JSON in line 1, column 4: there is more behind the value."),
            (" \n", "The body is empty."),
            (&"[".repeat(200), "The body has too many lists and objects within each other."),
        ] {
            let fault = serde_json::from_str::<Value>(text).unwrap_err();
            assert_eq!(invalid_json(text.as_bytes(), &fault).message(), message, "{text}");
        }
        let fault = serde_json::from_slice::<Value>(b"[\"\xff\"]").unwrap_err();
        assert_eq!(invalid_json(b"[\"\xff\"]", &fault).message(), "The body is not UTF-8.");
    }
}
