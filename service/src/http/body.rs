//! Request bodies, with limits for size and time.

use std::time::Duration;

use bytes::{Buf, BufMut as _, Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::time::timeout;
use warp::{Filter, Rejection};

use super::{ApiError, Code, decode};

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
    // Serde also accepts an array of field values for a struct.
    if text.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiError::bad_request("The body must be a JSON object."));
    }
    let malformed = || ApiError::bad_request("The body is not valid JSON.");
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let cause = error.into_inner();
        // The parser reports a number in place of an enum's name as a syntax error, although the body is valid JSON.
        let is_json = cause.is_data() || serde_json::from_slice::<IgnoredAny>(text).is_ok();
        if is_json { decode::error(&path, &cause.to_string()) } else { malformed() }
    })?;
    json.end().map_err(|_| malformed())?;
    Ok(value)
}

/// Checks that a body is not encoded: compressed bytes would be taken for text.
///
/// # Errors
/// 415 for a `Content-Encoding` other than `identity`.
pub fn require_plain(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_plain = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        return Ok(());
    }
    Err(ApiError::new(Code::UnsupportedEncoding, "Send the body without a content encoding."))
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
        for text in ["", "{", "nonsense", r#"{"name":"a"} {"name":"b"}"#, "\u{feff}{}", r#"{"name":tru}"#] {
            assert_eq!(error_body(text)["message"], "The body is not valid JSON.", "{text}");
        }
        for text in ["[]", r#" ["a",["b"]]"#, "3", "\"name\"", "null"] {
            assert_eq!(error_body(text)["message"], "The body must be a JSON object.", "{text}");
        }
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
