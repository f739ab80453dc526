//! The edge's answers other than redirects.

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use warp::reply::Response;

/// `Cache-Control` of answers that never change.
const CACHE_FOR_A_DAY: &str = "public, max-age=86400";

/// `Cache-Control` of pages: a link may be created under any slug at any time.
const NO_STORE: &str = "private, no-store";

const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

macro_rules! page {
    ($title:literal, $text:literal) => {
        concat!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">",
            "<meta name=\"viewport\" content=\"width=device-width\"><meta name=\"robots\" content=\"noindex\">",
            "<title>",
            $title,
            "</title><style>body{font:1rem/1.5 system-ui,sans-serif;margin:20vh auto;max-width:30rem;padding:0 1rem}",
            "@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}</style></head>",
            "<body><h1>",
            $title,
            "</h1><p>",
            $text,
            "</p></body></html>\n"
        )
    };
}

/// Answers at the root, where no link can be.
pub(super) fn root() -> Response {
    answer(StatusCode::OK, HTML, NO_STORE, page!("Short links", "This address serves short links."))
}

/// Allows crawlers to follow links: their clicks have another class.
pub(super) fn robots() -> Response {
    answer(StatusCode::OK, TEXT, CACHE_FOR_A_DAY, "User-agent: *\nDisallow:\n")
}

/// Answers that there is no icon; cached, so that browsers do not request it on each click.
pub(super) fn favicon() -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(CACHE_FOR_A_DAY));
    response
}

/// Answers for a link that does not exist or is not active, without revealing which.
pub(super) fn not_found() -> Response {
    let page = page!("Link not found", "There is no link at this address. Please check how it is written.");
    answer(StatusCode::NOT_FOUND, HTML, NO_STORE, page)
}

/// Answers for a link that an operator disabled.
pub(super) fn blocked() -> Response {
    let page = page!("Link disabled", "The operator of this service has disabled this link.");
    answer(StatusCode::GONE, HTML, NO_STORE, page)
}

/// Answers for an expired link.
pub(super) fn expired() -> Response {
    answer(StatusCode::GONE, HTML, NO_STORE, page!("Link expired", "This link is no longer in use."))
}

fn answer(
    status: StatusCode,
    content_type: &'static str,
    cache: &'static str,
    body: &'static str,
) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
    // Pages have no scripts, and no other page may frame them.
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}
