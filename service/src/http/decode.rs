//! Turns serde's errors into messages for callers.

use super::ApiError;

/// What is parsed, as messages call it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Input {
    Body,
    /// An entry of a list in the body, which is parsed on its own.
    Entry,
    Query,
}

impl Input {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Entry => "entry",
            Self::Query => "query",
        }
    }

    /// What a known name belongs to.
    const fn part(self) -> &'static str {
        match self {
            Self::Body | Self::Entry => "field",
            Self::Query => "parameter",
        }
    }

    /// Returns the error of a value that has no fields.
    pub(super) fn malformed(self) -> ApiError {
        let name = self.name();
        ApiError::bad_request(match self {
            Self::Body | Self::Entry => format!("The {name} must be a JSON object."),
            Self::Query => format!("The {name} is not valid."),
        })
    }
}

/// Returns the error for serde's `message`, without a position, about the field at `path`, or about the whole value if
/// that is `.`.
///
/// Serde's texts are recognized but never returned: they have names of Rust types. A text of a deserializer of ours
/// begins with "must" and is returned.
pub(super) fn error(input: Input, path: &str, message: &str) -> ApiError {
    let path = if path == "." { "" } else { path };
    let of_field = |named: &str| match path {
        "" => named.to_owned(),
        // The path ends with the field when the parser was inside it.
        path if path == named || path.ends_with(&format!(".{named}")) => path.to_owned(),
        path => format!("{path}.{named}"),
    };
    let (field, fault) = if let Some(named) = named(message, "unknown field") {
        if named.is_empty() {
            return without_name(input, path);
        }
        (of_field(named), format!("is not a known {}", input.part()))
    } else if let Some(named) = named(message, "missing field") {
        (of_field(named), "is required".to_owned())
    } else if let Some(named) = named(message, "duplicate field") {
        (of_field(named), "must be given only once".to_owned())
    } else {
        (path.to_owned(), predicate(message))
    };
    if field.is_empty() { input.malformed() } else { ApiError::invalid_field(field, fault) }
}

/// Returns the name in a message of a kind. It may have backticks itself.
fn named<'a>(message: &'a str, kind: &str) -> Option<&'a str> {
    let rest = message.strip_prefix(kind)?.strip_prefix(" `")?;
    // Unknown ones are followed by the known ones, if there are any.
    let end = rest.rfind("`, expected ").or_else(|| rest.rfind("`, there are no "));
    rest.get(..end.or_else(|| rest.rfind('`'))?)
}

/// Returns the error of a field whose name is empty. The path may end with that name.
fn without_name(input: Input, path: &str) -> ApiError {
    match path.strip_suffix('.').unwrap_or(path) {
        "" => ApiError::bad_request(format!("A {} of the {} has no name.", input.part(), input.name())),
        parent => ApiError::invalid_field(parent, "has a field without a name"),
    }
}

/// Returns the problem with a value as a predicate.
fn predicate(message: &str) -> String {
    if message.starts_with("must ") {
        return message.replace('`', "");
    }
    let expected = message.rsplit_once(", expected ").map(|(_, expected)| expected);
    if message.starts_with("unknown variant") {
        return expected.map_or_else(not_valid, |names| format!("must be {}", one_of(names)));
    }
    let Some(expected) = expected else { return predicate_of_text(message).to_owned() };
    let kind = match expected {
        "a string" | "a borrowed string" | "str" => "a string",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "f32" | "f64" => "a number",
        // From the deserializers of our ids.
        id if id.starts_with("an ID that ") => id,
        expected if expected.starts_with("struct ") => "an object",
        expected if is_integer(expected) => return whole_number(message).to_owned(),
        expected => {
            let length = expected.strip_prefix("a tuple of size ");
            return length.map_or_else(not_valid, |length| format!("must be a list of {length} entries"));
        }
    };
    format!("must be {kind}")
}

/// Returns the problem with a value that had to be parsed from text.
fn predicate_of_text(message: &str) -> &'static str {
    match message {
        "number too large to fit in target type" => "is too large",
        "number too small to fit in target type" => "is too small",
        "number out of range" => "is out of range",
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "must be a whole number"
        }
        "invalid float literal" | "cannot parse float from empty string" => "must be a number",
        message if message.ends_with("was not `true` or `false`") => "must be true or false",
        _ => "is not valid",
    }
}

/// Returns the problem with a value that is no number of an integer type.
fn whole_number(message: &str) -> &'static str {
    // Not from the text of a string, which may be a number in backticks.
    let numbers = ["invalid value: integer `", "invalid type: floating point `"];
    let given =
        numbers.iter().find_map(|start| message.strip_prefix(start)?.split('`').next()?.parse::<f64>().ok());
    // The parser turns what is beyond every integer type into a number with a fraction.
    let is_beyond = |given: f64| given.fract() == 0.0 && given.abs() >= 2_f64.powi(63);
    match given {
        Some(given) if message.starts_with("invalid value: integer") || is_beyond(given) => {
            if given < 0.0 {
                "is too small"
            } else {
                "is too large"
            }
        }
        _ => "must be a whole number",
    }
}

fn not_valid() -> String {
    "is not valid".to_owned()
}

/// Returns names that serde lists in backticks as "a, b or c".
fn one_of(names: &str) -> String {
    let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Returns whether `expected` is the name of an integer type, such as `i16`.
fn is_integer(expected: &str) -> bool {
    expected.strip_prefix(['i', 'u']).is_some_and(|bits| bits == "size" || bits.parse::<u8>().is_ok())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::de::{DeserializeOwned, Error as _};
    use serde::{Deserialize, Deserializer};

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
        maybe: Option<Format>,
        kinds: Vec<Kind>,
        when: Option<std::net::IpAddr>,
        pair: (u8, u8),
        #[serde(deserialize_with = "ours")]
        ours: String,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Inner {
        name: String,
        #[serde(default)]
        kind: Kind,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        #[default]
        Off,
        Append,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Format {
        Json,
        Csv,
        Ndjson,
    }

    fn ours<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "right" { Ok(text) } else { Err(D::Error::custom("must be `right`")) }
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
            (r#"{"amount":[]}"#, "Amount must be a number."),
            (r#"{"amount":1e400}"#, "Amount is out of range."),
            (r#"{"list":{}}"#, "List must be a list."),
            (r#"{"list":[{"name":"a"},3]}"#, "List[1] must be an object."),
            (r#"{"list":[{}]}"#, "List[0].name is required."),
            (r#"{"list":[{"name":"a","x":1}]}"#, "List[0].x is not a known field."),
            (r#"{"map":[]}"#, "Map must be an object."),
            (r#"{"map":{"a":"b"}}"#, "Map.a must be a whole number."),
            (r#"{"when":"soon"}"#, "When is not valid."),
            (r#"{"pair":[1]}"#, "Pair must be a list of 2 entries."),
            (r#"{"ours":"wrong, expected i16"}"#, "Ours must be right."),
        ] {
            assert_eq!(error_message::<Everything>(text), message, "{text}");
        }
    }

    #[test]
    fn an_integer_is_a_whole_number_in_its_range() {
        for (value, message) in [
            (r#""1""#, "Count must be a whole number."),
            ("null", "Count must be a whole number."),
            ("1.5", "Count must be a whole number."),
            ("301.0", "Count must be a whole number."),
            ("1e300", "Count is too large."),
            ("-1e300", "Count is too small."),
            ("70000", "Count is too large."),
            ("-70000", "Count is too small."),
            ("99999999999999999999999", "Count is too large."),
            (r#""70000""#, "Count must be a whole number."),
        ] {
            assert_eq!(error_message::<Everything>(&format!("{{\"count\":{value}}}")), message, "{value}");
        }
        for (value, message) in [
            ("many", "Count must be a whole number."),
            ("", "Count must be a whole number."),
            ("1.5", "Count must be a whole number."),
            ("70000", "Count is too large."),
            ("-70000", "Count is too small."),
        ] {
            let query = parse_query::<Everything>(&format!("count={value}")).unwrap_err();
            assert_eq!(query.message(), message, "{value}");
        }
        for value in ["many", ""] {
            let query = parse_query::<Everything>(&format!("amount={value}")).unwrap_err();
            assert_eq!(query.message(), "Amount must be a number.", "{value}");
        }
        assert_eq!(parse_query::<Everything>("flag=").unwrap_err().message(), "Flag must be true or false.");
    }

    #[test]
    fn a_value_of_an_enum_is_one_of_its_names() {
        for value in [
            r#""maybe""#,
            r#""maybe`, expected `x""#,
            r#""""#,
            "1",
            "-1.5",
            "true",
            "null",
            "[]",
            r#"["off"]"#,
            "{}",
            r#"{"off":1}"#,
            r#"{"off":null,"append":null}"#,
            r#"{"x":null}"#,
        ] {
            for (text, field) in [
                (format!("{{\"kind\":{value}}}"), "Kind"),
                (format!("{{\"text\":\"a\",\"kind\":{value},\"flag\":\"no bool\"}}"), "Kind"),
                (format!("{{\"kinds\":[\"off\",{value}]}}"), "Kinds[1]"),
                (format!("{{\"list\":[{{\"name\":\"a\",\"kind\":{value}}}]}}"), "List[0].kind"),
            ] {
                let message = format!("{field} must be off or append.");
                assert_eq!(error_message::<Everything>(&text), message, "{text}");
            }
            if value != "null" {
                let text = format!("{{\"maybe\":{value}}}");
                assert_eq!(
                    error_message::<Everything>(&text),
                    "Maybe must be json, csv or ndjson.",
                    "{text}"
                );
            }
        }
        // A number that no type has hides the names.
        assert_eq!(error_message::<Everything>(r#"{"kind":1e400}"#), "Kind must be a string.");
        for value in ["maybe", "", "1", "OFF"] {
            let query = parse_query::<Everything>(&format!("kind={value}")).unwrap_err();
            assert_eq!(query.message(), "Kind must be off or append.", "{value}");
        }
    }

    #[test]
    fn a_name_is_shown_whole_and_an_empty_one_is_missing() {
        for (text, field, message) in [
            (r#"{"a`b":1}"#, "a`b", "A`b is not a known field."),
            (r#"{"a`, expected `b":1}"#, "a`, expected `b", "A`, expected `b is not a known field."),
            (
                r#"{"x at line 1 column 2":1}"#,
                "x at line 1 column 2",
                "X at line 1 column 2 is not a known field.",
            ),
            (r#"{"list":[{"":1}]}"#, "list[0]", "List[0] has a field without a name."),
        ] {
            let body = parse_json::<Everything>(text.as_bytes()).unwrap_err().body();
            let detail = &body["details"][0];
            assert_eq!((&detail["field"], &detail["message"]), (&field.into(), &message.into()), "{text}");
        }
        assert_eq!(error_message::<Everything>(r#"{"":1}"#), "A field of the body has no name.");
    }
}
