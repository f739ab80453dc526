//! What browsers of other sites may do with the API.
//!
//! Any origin, but with `Authorization` alone: `X-API-Key` fails its preflight. Registering a conversion needs no key,
//! so there even `Authorization` is not asked for.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ALLOW,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use service::http::Route;
use warp::path::FullPath;
use warp::{Filter as _, Reply as _, reply::Response};

use crate::surface::{Resource, resource_at};

/// Headers of an answer that a page's script may read.
const EXPOSED: &str = "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After, X-Request-Id, Location, Content-Disposition";

/// Seconds for which a browser may keep a preflight's answer.
const MAX_AGE: u32 = 600;

/// Lets a page of any origin read an answer.
pub(crate) fn open(headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
}

/// `OPTIONS` of every resource: what may be sent to it, from a page or not.
pub(crate) fn preflight() -> Route {
    warp::path::full()
        .and_then(|path: FullPath| async move {
            // The path first: asked for its method first, an unknown path would be 405 instead of 404.
            resource_at(path.as_str()).ok_or_else(warp::reject::not_found)
        })
        .and(warp::options())
        .and(warp::header::headers_cloned())
        .map(|resource: &'static Resource, request: HeaderMap| answer(resource, &request))
        .boxed()
}

fn answer(resource: &Resource, request: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(ALLOW, methods(resource));
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods(resource));
    let asked = request.get(ACCESS_CONTROL_REQUEST_METHOD).and_then(|method| method.to_str().ok());
    let is_open = asked.is_some_and(|method| resource.open.contains(&method));
    let allowed = if is_open { "Content-Type" } else { "Authorization, Content-Type" };
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(allowed));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(MAX_AGE));
    response
}

/// The methods of a resource, for a header.
pub(crate) fn methods(resource: &Resource) -> HeaderValue {
    // Letters, commas and spaces are always a header's value.
    HeaderValue::try_from(resource.methods.join(", ")).unwrap_or(HeaderValue::from_static("GET"))
}
