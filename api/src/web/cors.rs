//! Cross-origin requests to the API.
//!
//! Any origin may call, with `Authorization` only: a preflight for `X-API-Key` fails. An operation without a key does
//! not even need `Authorization`.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ALLOW,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use warp::Reply as _;
use warp::reply::Response;

use super::operation::Access;

/// Headers of an answer that a page's script may read.
const EXPOSED: &str = "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After, X-Request-Id, \
    Location, Content-Disposition";

/// Seconds for which a browser may cache a preflight.
const MAX_AGE: u32 = 600;

/// Lets a page of any origin read an answer.
pub(crate) fn open(headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
}

/// Answers `OPTIONS`: what may be sent to a path with these methods, from a page or not.
pub(crate) fn preflight(
    request: &HeaderMap,
    methods: &str,
    access: impl Fn(Method) -> Option<Access>,
) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    // Names of methods are always a header's value.
    if let Ok(methods) = HeaderValue::from_str(methods) {
        headers.insert(ALLOW, methods.clone());
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
    let asked = request.get(ACCESS_CONTROL_REQUEST_METHOD);
    let asked = asked.and_then(|method| Method::from_bytes(method.as_bytes()).ok());
    let is_open = asked.and_then(access) == Some(Access::Anyone);
    let allowed = if is_open { "Content-Type" } else { "Authorization, Content-Type" };
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(allowed));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(MAX_AGE));
    response
}
