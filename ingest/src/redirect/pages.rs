//! The few answers of the edge that are no redirects.

use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use warp::reply::Response;

/// How long browsers may keep what never changes.
const DAY: &str = "public, max-age=86400";

/// A link may appear under any slug at any time.
const NEVER: &str = "private, no-store";

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

/// What stands at the root, where no link can be.
pub(super) fn root() -> Response {
    answer(StatusCode::OK, HTML, NEVER, page!("Short links", "This address serves short links."))
}

/// Crawlers may follow links; what they do is told apart from what people do.
pub(super) fn robots() -> Response {
    answer(StatusCode::OK, TEXT, DAY, "User-agent: *\nDisallow:\n")
}

/// There is no icon, and browsers should not ask for each click.
pub(super) fn favicon() -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(DAY));
    response
}

/// No such link, or one that is switched off; the same for both, because that is nobody's business.
pub(super) fn not_found() -> Response {
    let page = page!("Link not found", "There is no link at this address. Please check how it is written.");
    answer(StatusCode::NOT_FOUND, HTML, NEVER, page)
}

/// A link whose time is over.
pub(super) fn expired() -> Response {
    answer(StatusCode::GONE, HTML, NEVER, page!("Link expired", "This link is no longer in use."))
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
    response
}
