//! The dashboard's page: the files that `npm run build` wrote, with their headers.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY};
use http::{HeaderMap, HeaderValue, StatusCode};
use rust_embed::RustEmbed;
use service::http::Route;
use service::http::route::{any_of, methods};
use warp::path::Tail;
use warp::reply::Response;
use warp::{Filter as _, Reply as _};

use super::file::{File, READ};

/// Embedded in release builds, read from the folder at the start in others.
#[derive(RustEmbed)]
#[folder = "dashboard/dist"]
#[allow_missing = true]
struct Built;

/// The page for every path that is not a file.
const INDEX: &str = "index.html";

/// The folder of files whose names change with their contents.
const HASHED: &str = "assets/";

/// Content-Security-Policy: only this origin, nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; \
     connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

/// The answer of a build without the page.
const NOT_BUILT: &str = "The dashboard's page is not part of this build of Hopline.

With Node 20.19 or later, build it, and then the program again:

    cd api/dashboard
    npm ci --ignore-scripts
    npm run build

Everything else of the API works without it.
";

/// Returns whether a path belongs to the dashboard or redirects to it.
pub(crate) fn is_at(path: &str) -> bool {
    path == "/" || path.strip_prefix("/app").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Serves the page at `/app` and every path below it except `/app/api`, and redirects `/` to it.
pub(crate) fn routes() -> Route {
    any_of([show_page(), redirect()])
}

/// `GET /`
fn redirect() -> Route {
    warp::path::end()
        .and(methods(READ))
        .map(|| {
            let mut response = StatusCode::SEE_OTHER.into_response();
            response.headers_mut().insert(LOCATION, HeaderValue::from_static("/app"));
            response
        })
        .boxed()
}

/// `GET /app` and everything below it that is not below `/app/api`
fn show_page() -> Route {
    let page = Arc::new(Page::built());
    warp::path("app")
        .and(warp::path::tail())
        .and_then(|tail: Tail| async move {
            // Unknown paths of the API are answered in JSON.
            let is_api = tail.as_str() == "api" || tail.as_str().starts_with("api/");
            if is_api { Err(warp::reject::not_found()) } else { Ok(tail) }
        })
        .and(methods(READ))
        .and(warp::header::headers_cloned())
        .map(move |tail: Tail, headers: HeaderMap| page.answer(tail.as_str(), &headers))
        .boxed()
}

/// The page's files by their paths.
#[derive(Debug)]
struct Page(HashMap<String, File>);

impl Page {
    /// Loads the page that this program was built with, if any.
    pub(super) fn built() -> Self {
        Self::of(Built::iter().filter_map(|path| {
            Built::get(&path).map(|file| (path.into_owned(), Bytes::from(file.data.into_owned())))
        }))
    }

    fn of(files: impl IntoIterator<Item = (String, Bytes)>) -> Self {
        Self(
            files
                .into_iter()
                .map(|(path, bytes)| (path.clone(), File::new(media_type(&path), bytes)))
                .collect(),
        )
    }

    /// Answers for a path below `/app/`.
    ///
    /// A path that is not a file gets the page, which decides what to show. Below the folder of hashed files it is 404,
    /// so that a page from before an update notices that its files are gone.
    pub(super) fn answer(&self, path: &str, request: &HeaderMap) -> Response {
        let (found, path) = match self.0.get(path) {
            Some(file) => (Some(file), path),
            None if path.starts_with(HASHED) => (None, path),
            None => (self.0.get(INDEX), INDEX),
        };
        let mut response = match found {
            Some(file) => file.answer(request),
            None if path == INDEX => text(NOT_BUILT),
            None => text("The page has no such file.\n"),
        };
        let headers = response.headers_mut();
        let cached = match found {
            Some(_) if path.starts_with(HASHED) => "public, max-age=31536000, immutable",
            _ => "no-cache",
        };
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(cached));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
        response
    }
}

/// Returns the media type of a file by its name.
fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("woff2") => "font/woff2",
        Some("txt" | "md") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn text(text: &'static str) -> Response {
    let mut response = Response::new(text.into());
    *response.status_mut() = StatusCode::NOT_FOUND;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dashboard_is_below_app() {
        for path in ["/", "/app", "/app/", "/app/links", "/app/api/session"] {
            assert!(is_at(path), "{path}");
        }
        for path in ["/apps", "/api/app", "/application/x"] {
            assert!(!is_at(path), "{path}");
        }
    }

    fn page() -> Page {
        let file = |path: &str, contents: &str| (path.to_owned(), Bytes::from(contents.to_owned()));
        Page::of([
            file("index.html", &"<p>page</p>".repeat(20)),
            file("assets/a-1234.js", &"let a = 1;".repeat(50)),
            file("assets/f-1234.woff2", &"font".repeat(50)),
            file("licences/a.txt", "free"),
        ])
    }

    #[test]
    fn unknown_paths_get_the_page_and_missing_assets_404() {
        let page = page();
        for path in ["", "links", "w/wsp_1/links/lnk_1", "index.html", "licences/none"] {
            let answer = page.answer(path, &HeaderMap::new());
            assert_eq!(
                (answer.status().as_u16(), answer.headers()[CACHE_CONTROL].to_str().unwrap()),
                (200, "no-cache"),
                "{path}"
            );
            assert_eq!(answer.headers()[CONTENT_TYPE], "text/html; charset=utf-8", "{path}");
        }
        let missing = page.answer("assets/a-0000.js", &HeaderMap::new());
        assert_eq!(
            (missing.status().as_u16(), missing.headers()[CACHE_CONTROL].to_str().unwrap()),
            (404, "no-cache")
        );
        let file = page.answer("assets/a-1234.js", &HeaderMap::new());
        assert_eq!(file.headers()[CACHE_CONTROL], "public, max-age=31536000, immutable");
        assert_eq!(page.answer("licences/a.txt", &HeaderMap::new()).headers()[CACHE_CONTROL], "no-cache");
    }

    #[test]
    fn a_build_without_the_page_explains_how_to_build_it() {
        let answer = Page::of([]).answer("links", &HeaderMap::new());
        assert_eq!(
            (answer.status().as_u16(), answer.headers()[CONTENT_TYPE].to_str().unwrap()),
            (404, "text/plain; charset=utf-8")
        );
        assert_eq!(answer.headers()[CONTENT_SECURITY_POLICY], POLICY);
        assert!(NOT_BUILT.contains("npm run build"));
    }
}
