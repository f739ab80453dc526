//! Request bodies, with limits for size and time.

use std::time::Duration;

use bytes::{Buf, BufMut as _, Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use warp::{Filter, Rejection};

use super::decode::Input;
use super::{ApiError, Code, fault, syntax};

/// The default limit of a request body in bytes.
pub const BODY_LIMIT: usize = 64 * 1024;

/// Timeout for receiving a body, so that a stalled sender does not hold its connection.
const BODY_TIMEOUT: Duration = Duration::from_secs(15);

/// Reads a JSON object of at most `limit` bytes as a `T`, which should have `serde(deny_unknown_fields)`.
///
/// # Errors
/// 415 unless the type is `application/json`, 413 above the limit, 400 with the field when the body is not a `T`.
pub async fn read_json<T: DeserializeOwned, B: Buf>(
    headers: &HeaderMap,
    body: impl Stream<Item = Result<B, warp::Error>>,
    limit: usize,
) -> Result<T, ApiError> {
    require_json(headers)?;
    parse_json(&read(headers, body, limit).await?)
}

/// Extracts an `application/json` body of at most `limit` bytes, for JSON that is not always an object.
///
/// Rejects with an [`ApiError`]: 415 for another type, 413 above the limit.
pub fn json_bytes(limit: usize) -> impl Filter<Extract = (Bytes,), Error = Rejection> + Clone {
    warp::header::headers_cloned().and(warp::body::stream()).and_then(
        move |headers: HeaderMap, stream| async move {
            require_json(&headers)?;
            Ok::<_, Rejection>(read(&headers, stream, limit).await?)
        },
    )
}

/// Reads a JSON object as a `T`.
///
/// # Errors
/// [`Code::BadRequest`](super::Code::BadRequest) with the invalid field.
pub fn parse_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    parse(Input::Body, text)
}

/// Reads a JSON object that is an entry of a list in the body as a `T`.
///
/// # Errors
/// As [`parse_json`]. Positions are those within the entry.
pub fn parse_entry<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    parse(Input::Entry, text)
}

fn parse<T: DeserializeOwned>(input: Input, text: &[u8]) -> Result<T, ApiError> {
    // Serde also accepts an array of field values for a struct.
    if text.trim_ascii_start().first() == Some(&b'[') {
        return Err(input.malformed());
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().clone();
        fault::error::<T>(input, text, &path, &error.into_inner())
    })?;
    json.end().map_err(|fault| syntax::error(input, text, &fault))?;
    Ok(value)
}

/// Checks that a body is not encoded: compressed bytes would be taken for text.
///
/// # Errors
/// 415 for a `Content-Encoding` other than `identity`, and for a `Transfer-Encoding` other than `chunked`, of which the
/// HTTP library undoes only the last.
pub fn require_plain(headers: &HeaderMap) -> Result<(), ApiError> {
    let all_are = |name, plain: &[u8]| {
        let is_plain = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(plain);
        headers.get_all(name).iter().all(is_plain)
    };
    if all_are(CONTENT_ENCODING, b"identity") && all_are(TRANSFER_ENCODING, b"chunked") {
        return Ok(());
    }
    Err(ApiError::new(Code::UnsupportedEncoding, "Send the body uncompressed."))
}

fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    require_plain(headers)?;
    if is_json(headers) {
        return Ok(());
    }
    Err(ApiError::unsupported_media_type("Send the body as application/json."))
}

/// Returns whether the media type is `application/json`, with or without parameters.
fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.as_bytes().split(|byte| *byte == b';').next())
        .is_some_and(|media_type| media_type.trim_ascii().eq_ignore_ascii_case(b"application/json"))
}

async fn read<B: Buf>(
    headers: &HeaderMap,
    stream: impl Stream<Item = Result<B, warp::Error>>,
    limit: usize,
) -> Result<Bytes, ApiError> {
    let too_large = || ApiError::payload_too_large(format!("The body has more than {limit} bytes."));
    let content_length: Option<u64> = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok())
        .and_then(|length| length.parse().ok());
    // Rejected before reading; the check below covers bodies without a length.
    if content_length.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let collect = async {
        let mut stream = std::pin::pin!(stream);
        let mut body = BytesMut::new();
        while let Some(chunk) = stream.next().await {
            let chunk =
                chunk.map_err(|error| ApiError::bad_request("The body ended early.").with_source(error))?;
            if body.len() + chunk.remaining() > limit {
                return Err(too_large());
            }
            body.put(chunk);
        }
        Ok(body.freeze())
    };
    timeout(BODY_TIMEOUT, collect)
        .await
        .unwrap_or_else(|_| Err(ApiError::bad_request("The body did not arrive in time.")))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct New {
        name: String,
        #[serde(default)]
        tags: Vec<String>,
    }

    fn error_body(text: &str) -> serde_json::Value {
        parse_json::<New>(text.as_bytes()).unwrap_err().body()
    }

    #[test]
    fn json_is_parsed_into_a_struct() {
        let new = New { name: "a".to_owned(), tags: vec!["b".to_owned()] };
        assert_eq!(parse_json(br#" {"name":"a","tags":["b"]} "#).ok(), Some(new));
    }

    #[test]
    fn an_error_names_the_field() {
        for (text, field, message) in [
            (r#"{"name":"a","tags":["b",3]}"#, "tags[1]", "Tags[1] must be a string."),
            (r#"{"name":"a","tags":"b"}"#, "tags", "Tags must be a list."),
            (r#"{"name":"a","colour":1}"#, "colour", "Colour is not a known field."),
            (r#"{"name":null}"#, "name", "Name must be a string."),
            (r#"{"name":"a","name":"b"}"#, "name", "Name must be given only once."),
            ("{}", "name", "Name is required."),
        ] {
            let body = error_body(text);
            assert_eq!((&body["details"][0]["field"], &body["message"]), (&field.into(), &message.into()));
        }
    }

    #[test]
    fn anything_but_one_json_object_is_rejected() {
        for (text, message) in [
            ("", "The body is empty."),
            ("{", "The body is not valid JSON in line 1, column 1: it ends within an object."),
            (
                "nonsense",
                "The body is not valid JSON in line 1, column 2: only true, false and null are words.",
            ),
            (
                r#"{"name":"a"} {"name":"b"}"#,
                "The body is not valid JSON in line 1, column 14: there is more behind the value.",
            ),
            ("\u{feff}{}", "The body is not valid JSON in line 1, column 1: a value is missing."),
            (
                r#"{"name":tru}"#,
                "The body is not valid JSON in line 1, column 12: only true, false and null are words.",
            ),
            (
                r#"{"name":"\ud800"}"#,
                "The body is not valid JSON in line 1, column 16: a string has half of a surrogate pair.",
            ),
        ] {
            assert_eq!(error_body(text)["message"], message, "{text}");
        }
        for text in [&b"{\"name\":\"\xff\"}"[..], b"{\"\xff\":1}", b"\xff"] {
            let error = parse_json::<New>(text).unwrap_err();
            assert_eq!(error.message(), "The body is not UTF-8.", "{text:?}");
        }
        for text in ["[]", r#" ["a",["b"]]"#, "3", "\"name\"", "null"] {
            assert_eq!(error_body(text)["message"], "The body must be a JSON object.", "{text}");
            let error = parse_entry::<New>(text.as_bytes()).unwrap_err();
            assert_eq!(error.message(), "The entry must be a JSON object.", "{text}");
        }
        let error = parse_entry::<New>(b"{\"name\":\"\\ud800\"}").unwrap_err();
        assert!(error.message().starts_with("The entry is not valid JSON in line 1, "), "{error}");
    }

    #[test]
    fn the_place_of_a_fault_is_where_the_text_is_no_json() {
        #[derive(Debug, Deserialize)]
        enum Kind {
            Off,
        }
        #[derive(Debug, Deserialize)]
        #[allow(dead_code)]
        struct Both {
            kind: Kind,
            name: String,
        }
        let error = parse_json::<Both>(br#"{"kind":1,"name":}"#).unwrap_err();
        assert_eq!(error.message(), "The body is not valid JSON in line 1, column 18: a value is missing.");
    }

    #[test]
    fn the_media_type_may_have_parameters() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(value));
            is_json(&headers)
        };
        assert!(with("application/json") && with("Application/JSON ; charset=utf-8"));
        assert!(!with("text/plain") && !with("application/json-patch") && !with(""));
        assert!(!is_json(&HeaderMap::new()));
    }
}
