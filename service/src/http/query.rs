//! Parses query strings into typed values.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::decode::Input;
use super::{ApiError, decode};

/// Reads a query string as a `T`, which should have `serde(deny_unknown_fields)`.
///
/// # Errors
/// [`Code::BadRequest`](super::Code::BadRequest) with the invalid parameter.
pub fn parse_query<T: DeserializeOwned>(raw: &str) -> Result<T, ApiError> {
    let pairs = serde_urlencoded::Deserializer::new(url::form_urlencoded::parse(raw.as_bytes()));
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let path = error.path().to_string();
        decode::error(Input::Query, &path, &error.into_inner().to_string())
    })
}

/// Checks the query of an operation that has no parameters.
///
/// # Errors
/// [`Code::BadRequest`](super::Code::BadRequest) with a parameter.
pub fn check_no_query(raw: &str) -> Result<(), ApiError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct NoParameters {}
    parse_query::<NoParameters>(raw).map(drop)
}

#[cfg(test)]
mod tests {
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
        assert_eq!(error_message("limit=many"), "Limit must be a whole number.");
        assert_eq!(error_message("limit=1000"), "Limit is too large.");
        assert_eq!(error_message(""), "Limit is required.");
        assert_eq!(error_message("limit=1&limit=2"), "Limit must be given only once.");
        assert_eq!(error_message("limit=1&colour=red"), "Colour is not a known parameter.");
    }

    #[test]
    fn a_parameter_without_a_name_is_called_one() {
        for raw in ["=x", "=", "limit=1&=x", "limit=1&=&q=a"] {
            let error = parse_query::<Page>(raw).unwrap_err();
            assert_eq!(error.message(), "A parameter of the query has no name.", "{raw}");
        }
        assert_eq!(check_no_query("=x").unwrap_err().message(), "A parameter of the query has no name.");
        assert_eq!(check_no_query("colour=x").unwrap_err().message(), "Colour is not a known parameter.");
        assert!(check_no_query("").is_ok());
    }
}
