//! The API's description, for programs and as a page for people.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use http::{HeaderMap, HeaderValue};
use service::http::Route;
use service::http::route::{any_of, methods};
use warp::Filter as _;
use warp::reply::Response;

use super::file::{File, READ};

/// OpenAPI 3.1. The test below compares it with the table of operations, schemathesis in `.ci/run` with every answer.
const DOCUMENT: &str = include_str!("../../openapi.json");

/// A page that renders the document in the browser, without other sources.
const PAGE: &str = include_str!("../../reference.html");

/// `GET /openapi.json` and `GET /docs`
pub(crate) fn openapi() -> Route {
    static FILES: LazyLock<[File; 2]> = LazyLock::new(|| {
        [("application/json", DOCUMENT), ("text/html; charset=utf-8", PAGE)]
            .map(|(media_type, text)| File::new(media_type, Bytes::from_static(text.as_bytes())))
    });
    let headers = || methods(READ).and(warp::header::headers_cloned());
    let document = warp::path!("openapi.json").and(headers()).map(|request| answer(&FILES[0], &request));
    let page = warp::path!("docs").and(headers()).map(|request| {
        let mut response = answer(&FILES[1], &request);
        response.headers_mut().insert(
            CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(
                "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            ),
        );
        response
    });
    any_of([document.boxed(), page.boxed()])
}

fn answer(file: &File, request: &HeaderMap) -> Response {
    let mut response = file.answer(request);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=300"));
    response
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::routes::{of_anyone, of_workspace};
    use crate::web::operation::{Access, Operation};

    #[test]
    fn the_document_lists_exactly_the_operations() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let operations: Vec<Operation> = of_workspace().into_iter().chain(of_anyone()).collect();
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(
            paths.values().map(|path| path.as_object().unwrap().len()).sum::<usize>(),
            operations.len()
        );
        for Operation { method, path, access, status, .. } in operations {
            let described = &document["paths"][format!("/{path}")][method.as_str().to_lowercase()];
            assert!(described["responses"].get(status.as_str()).is_some(), "{method} /{path}");
            let needs_no_key = described["security"] == json!([]);
            assert_eq!(needs_no_key, access == Access::Anyone, "{method} /{path}");
        }
    }

    #[test]
    fn every_reference_of_the_document_resolves() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let mut waiting = vec![&document];
        let mut seen = 0;
        while let Some(value) = waiting.pop() {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(reference)) = fields.get("$ref") {
                        seen += 1;
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                    }
                    waiting.extend(fields.values());
                }
                Value::Array(items) => waiting.extend(items),
                _ => {}
            }
        }
        assert!(seen > 100);
    }
}
