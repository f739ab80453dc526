//! Faults in the fields of a request, reported in one answer.

use service::http::{ApiError, Code};
use url::Url;

use super::text;

/// The faults found so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults(Vec<(String, String)>);

impl Faults {
    /// Adds the fault of a checked field, if it has one. Returns whether it has none.
    pub(crate) fn note(&mut self, field: &'static str, outcome: Result<(), impl Into<String>>) -> bool {
        outcome.map_err(|fault| self.add(field, fault)).is_ok()
    }

    /// Adds a fault: a predicate such as "must be true or false".
    pub(crate) fn add(&mut self, field: &'static str, fault: impl Into<String>) {
        self.0.push((field.to_owned(), fault.into()));
    }

    /// Adds faults that were found elsewhere.
    pub(crate) fn append(&mut self, others: &Self) {
        self.0.extend_from_slice(&others.0);
    }

    /// Returns the faults of some fields.
    pub(crate) fn of(&self, fields: &[&str]) -> Self {
        Self(self.0.iter().filter(|(field, _)| fields.contains(&field.as_str())).cloned().collect())
    }

    /// Returns whether there is no fault.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the error if there is a fault.
    pub(crate) fn into_result(self) -> Result<(), ApiError> {
        if self.is_empty() { Ok(()) } else { Err(ApiError::invalid_fields(Code::BadRequest, self.0)) }
    }
}

/// Longest name of anything that has one, in characters.
pub(crate) const MAX_NAME: usize = 200;

/// Checks a name.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    check_new_text(name, MAX_NAME)
}

/// Checks a short text that people read and that is not stored yet.
pub(crate) fn check_new_text(text: &str, max_chars: usize) -> Result<(), String> {
    check_text(text, max_chars)?;
    text::check_readable(text)
}

/// Checks a short text that may be older than the rules of [`text`]: it is not empty, not too long, and has no control
/// characters.
pub(crate) fn check_text(text: &str, max_chars: usize) -> Result<(), String> {
    if text.is_empty() || text.chars().count() > max_chars {
        return Err(format!("must have 1 to {max_chars} characters"));
    }
    if text.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    Ok(())
}

/// Longest URL, in bytes.
const MAX_URL: usize = 2_048;

const ABSOLUTE_URL: &str = "must be an absolute URL, such as https://example.com/page";

/// Parses a URL, and rejects what parsers would repair, because not all repair it in the same way.
///
/// They drop control characters and, from hosts, invisible ones, take a backslash for a slash, and find a host behind
/// any number of slashes (URL Standard, 4.4).
pub(crate) fn parse_url(text: &str) -> Result<Url, String> {
    if text.len() > MAX_URL {
        return Err("must have at most 2,048 bytes".to_owned());
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("must not contain spaces or control characters: percent-encode them".to_owned());
    }
    if text.contains('\\') {
        return Err("must not contain a backslash: percent-encode it as %5C".to_owned());
    }
    text::check_exact(text).map_err(|fault| format!("{fault}: percent-encode it"))?;
    let url = Url::parse(text).map_err(|_| ABSOLUTE_URL)?;
    let (_, rest) = text
        .split_once("://")
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(url.scheme()))
        .ok_or(ABSOLUTE_URL)?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() {
        return Err("must have a host behind ://, such as https://example.com/page".to_owned());
    }
    if authority.contains('@') {
        return Err("must not contain a user name or a password".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_url_that_needs_no_repair_is_parsed() {
        for good in [
            "https://example.com",
            "HTTPS://Example.com:8443/a?next=https://other.example/\u{e9}#@",
            "http://[2001:db8::1]/a@b?c://d",
        ] {
            assert!(parse_url(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "/page",
            "example.com",
            "https:example.com",
            "https:/example.com",
            "https:///example.com/",
            "https:////example.com/",
            "https://",
            "https://?a",
            "https://:443/",
            "https://@example.com/",
            "https://:@example.com/",
            "https://a@example.com/",
            "https://a:b@example.com/",
            "https:\\\\example.com/",
            "https://example.com\\@other.example/",
            "https://example.com/a\\b",
            "https://example.com/?a=\\",
            "ht\ttps://example.com/",
            "https://exa\u{a0}mple.com/",
            "https:page?next=https://example.com",
            "https://exa\u{200b}mple.com/",
            "https://exa\u{ad}mple.com/",
            "https://example.com/\u{202e}gpj.exe",
            "https://example.com/?a=👩\u{200d}💻",
            "https://example.com/\u{e000}",
        ] {
            assert!(parse_url(bad).is_err(), "{bad}");
        }
    }
}
