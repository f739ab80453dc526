//! Parses query strings into typed values.

use serde::de::DeserializeOwned;

use super::{ApiError, decode};

/// Reads a query string as a `T`, which should have `serde(deny_unknown_fields)`.
///
/// # Errors
/// [`Code::BadRequest`](super::Code::BadRequest) with the invalid parameter.
pub fn parse_query<T: DeserializeOwned>(raw: &str) -> Result<T, ApiError> {
    let pairs = serde_urlencoded::Deserializer::new(url::form_urlencoded::parse(raw.as_bytes()));
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let path = error.path().to_string();
        decode::error(&path, &error.into_inner().to_string())
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Page {
        limit: u8,
        q: Option<String>,
    }

    fn error_message(raw: &str) -> String {
        parse_query::<Page>(raw).unwrap_err().message().to_owned()
    }

    #[test]
    fn a_query_is_parsed_into_a_struct() {
        let page = Page { limit: 5, q: Some("a b\u{e9}".to_owned()) };
        assert_eq!(parse_query("limit=5&q=a+b%C3%A9").ok(), Some(page));
    }

    #[test]
    fn an_error_names_the_parameter() {
        assert_eq!(error_message("limit=many"), "Limit must be a number.");
        assert_eq!(error_message("limit=1000"), "Limit must be a number.");
        assert_eq!(error_message(""), "Limit is required.");
        assert_eq!(error_message("limit=1&limit=2"), "Limit must be given only once.");
        assert_eq!(error_message("limit=1&colour=red"), "Colour is not a known field.");
    }
}
