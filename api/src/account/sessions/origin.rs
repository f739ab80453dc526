//! Protection against cross-site requests: changes must come from the dashboard's own page.
//!
//! A browser adds the cookie to requests of other sites' pages, as far as `SameSite=Lax` allows. Such pages can send
//! forms and plain text. A custom header or a JSON body needs a preflight, which the dashboard's routes do not answer.

use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, Method};
use service::http::ApiError;
use url::Url;

/// Rejects a change that the page has not sent. Reading needs no check: other sites' pages cannot see the answer.
///
/// `page` is the dashboard's configured address; without one it is the requested host.
pub(super) fn check(method: &Method, headers: &HeaderMap, page: Option<&Url>) -> Result<(), ApiError> {
    if method == Method::GET || method == Method::HEAD {
        return Ok(());
    }
    if text(headers, "x-requested-with") != Some("hopline") {
        return Err(ApiError::forbidden("A change needs the header X-Requested-With: hopline."));
    }
    let media_type =
        text(headers, CONTENT_TYPE.as_str()).and_then(|value| value.split(';').next()).map(str::trim);
    let is_ours = |media_type: &str| {
        ["application/json", "text/csv"].iter().any(|known| known.eq_ignore_ascii_case(media_type))
    };
    if !media_type.is_some_and(is_ours) {
        return Err(ApiError::forbidden(
            "A change needs Content-Type: application/json, or text/csv for an import.",
        ));
    }
    match headers.get(ORIGIN) {
        Some(origin) if !origin.to_str().is_ok_and(|origin| is_own(origin, headers, page)) => {
            Err(ApiError::forbidden("Only the dashboard's own page can make changes."))
        }
        _ => Ok(()),
    }
}

fn is_own(origin: &str, headers: &HeaderMap, page: Option<&Url>) -> bool {
    let Ok(origin) = Url::parse(origin) else { return false };
    match page {
        Some(page) => origin.origin() == page.origin(),
        None => text(headers, HOST.as_str()).is_some_and(|host| {
            // A proxy may have changed the scheme, and browsers leave out the scheme's default port.
            let asked = Url::parse(&format!("{}://{host}", origin.scheme()));
            asked.is_ok_and(|asked| asked.origin().is_tuple() && asked.origin() == origin.origin())
        }),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn allowed(changes: &[(&'static str, Option<&'static str>)], page: Option<&str>) -> bool {
        let mut headers = HeaderMap::from_iter(
            [
                ("host", "go.example:8080"),
                ("x-requested-with", "hopline"),
                ("content-type", "application/json; charset=utf-8"),
                ("origin", "http://go.example:8080"),
            ]
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))),
        );
        for (name, value) in changes {
            match value {
                Some(value) => headers.insert(*name, HeaderValue::from_static(value)),
                None => headers.remove(*name),
            };
        }
        let page = page.map(|page| Url::parse(page).unwrap());
        check(&Method::POST, &headers, page.as_ref()).is_ok()
    }

    #[test]
    fn a_change_must_come_from_the_page() {
        assert!(allowed(&[], None));
        assert!(allowed(&[("origin", None)], None), "no browser");
        assert!(allowed(&[("content-type", Some("text/csv"))], None));
        assert!(allowed(&[("host", Some("go.example")), ("origin", Some("https://go.example"))], None));
        for (name, value) in [
            ("x-requested-with", None),
            ("x-requested-with", Some("XMLHttpRequest")),
            ("content-type", None),
            ("content-type", Some("text/plain")),
            ("content-type", Some("multipart/form-data; boundary=a")),
            ("origin", Some("null")),
            ("origin", Some("http://evil.example")),
            ("origin", Some("http://go.example:8081")),
            ("origin", Some("http://go.example")),
            ("origin", Some("http://go.example:8080.evil.example")),
            ("origin", Some("file://")),
            ("host", None),
        ] {
            assert!(!allowed(&[(name, value)], None), "{name}: {value:?}");
        }
    }

    #[test]
    fn a_configured_page_address_overrides_the_host() {
        let page = Some("https://dash.example");
        assert!(!allowed(&[], page));
        assert!(allowed(&[("origin", Some("https://dash.example"))], page));
        assert!(!allowed(&[("origin", Some("http://dash.example"))], page));
    }

    #[test]
    fn reading_needs_no_origin() {
        assert!(check(&Method::GET, &HeaderMap::new(), None).is_ok());
        assert!(check(&Method::DELETE, &HeaderMap::new(), None).is_err());
    }
}
