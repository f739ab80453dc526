//! What HTTP asks of every answer: HEAD, entity tags, methods, encodings, and no parameter that is ignored.

use std::collections::BTreeSet;
use std::io::Read as _;

use flate2::read::GzDecoder;
use futures_util::future::join_all;
use reqwest::header::{ACCEPT_ENCODING, ETAG, HeaderMap, IF_MATCH, IF_NONE_MATCH};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::dashboard::Browser;
use crate::server::{Answer, Server, answer, text};

fn new_link(name: &str) -> Value {
    json!({"name": name, "destination": "https://example.com/"})
}

fn tag(answer: &Answer) -> &str {
    answer.headers[ETAG].to_str().unwrap()
}

#[tokio::test]
async fn head_is_answered_as_get_without_the_body() {
    let server = Server::start().await;
    let link = server.create_link(new_link(&"a".repeat(200))).await;
    server.create_link(new_link(&"b".repeat(200))).await;
    let link = format!("/api/v1/links/{}", text(&link["id"]));
    let paths = [
        "/api/v1/links",
        "/api/links?limit=101",
        &link,
        &format!("{link}/qr"),
        &format!("{link}/stats?start_date=2026-01-01"),
        &format!("{link}/clicks"),
        "/api/v1/clicks?format=csv",
        "/api/v1/webhooks",
        "/api/v1/usage",
        "/api/v1/links/nothing",
        "/api/v1/nothing",
        "/api/openapi.json",
        "/api/v1/docs",
        "/app/api/setup",
        "/app/api/session",
    ];
    for path in paths {
        for accepted in ["identity", "gzip"] {
            let ask = async |method| {
                let request = server.request(method, path).bearer_auth(&server.key);
                let answer = request.header(ACCEPT_ENCODING, accepted).send().await.unwrap();
                let names = answer.headers().keys().map(ToString::to_string);
                // It tells how a body is sent, and there is none (RFC 9112, 6.1).
                let names: BTreeSet<String> = names.filter(|name| name != "transfer-encoding").collect();
                let length = answer.headers().get("content-length").cloned();
                (answer.status(), length, names, answer.bytes().await.unwrap())
            };
            let ((status, length, names, body), head) = (ask(Method::GET).await, ask(Method::HEAD).await);
            assert!(!body.is_empty(), "{path}");
            assert_eq!(head, (status, length, names, Default::default()), "{path} {accepted}");
        }
    }
}

#[tokio::test]
async fn a_link_has_its_revision_as_tag_and_a_stale_one_changes_nothing() {
    let server = Server::start().await;
    let created = server.send(Method::POST, "/api/v1/links", Some(new_link("a"))).await;
    assert_eq!((created.status.as_u16(), tag(&created)), (201, "\"1\""));
    let path = format!("/api/v1/links/{}", text(&created.body["id"]));
    let change = |tags: &[&str], body: Value| {
        let mut request = server.request(Method::PATCH, &path).bearer_auth(&server.key).json(&body);
        for tag in tags {
            request = request.header(IF_MATCH, *tag);
        }
        answer(request)
    };
    let changed = change(&["\"1\""], json!({"name": "b"})).await;
    assert_eq!((changed.status.as_u16(), tag(&changed)), (200, "\"2\""));
    for (tags, status, code) in [
        (&["\"1\""][..], 412, "PRECONDITION_FAILED"),
        (&["\"1\"", "W/\"2\""], 412, "PRECONDITION_FAILED"),
        (&["2"], 400, "BAD_REQUEST"),
    ] {
        let refused = change(tags, json!({"name": "c"})).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (status, &json!(code)), "{tags:?}");
    }
    let shown = server.send(Method::GET, &path, None).await;
    assert_eq!((tag(&shown), &shown.body["name"]), ("\"2\"", &json!("b")));
    let same = change(&["\"1\", \"2\""], json!({"name": "b"})).await;
    assert_eq!((same.status.as_u16(), tag(&same)), (200, "\"2\""), "nothing differs");
    for tags in [&["*"][..], &[]] {
        assert_eq!(change(tags, json!({"name": format!("{tags:?}")})).await.status, 200);
    }

    let delete = |tag: &str| {
        answer(server.request(Method::DELETE, &path).bearer_auth(&server.key).header(IF_MATCH, tag))
    };
    assert_eq!(delete("\"2\"").await.status, 412);
    assert_eq!(delete("\"4\"").await.status, 204);
    assert_eq!(delete("\"4\"").await.status, 404);
}

#[tokio::test]
async fn of_changes_at_once_to_one_revision_one_is_made() {
    let server = Server::start().await;
    let link = server.create_link(new_link("a")).await;
    let path = format!("/api/v1/links/{}", text(&link["id"]));
    let changes = (0..8).map(|number| {
        let request = server.request(Method::PATCH, &path).bearer_auth(&server.key);
        answer(request.header(IF_MATCH, "\"1\"").json(&json!({"name": format!("name {number}")})))
    });
    let mut statuses: Vec<u16> =
        join_all(changes).await.iter().map(|answer| answer.status.as_u16()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412, 412, 412, 412, 412, 412, 412]);
}

#[tokio::test]
async fn repeated_and_upserted_links_have_a_tag() {
    let server = Server::start().await;
    let create = || {
        let request = server.request(Method::POST, "/api/v1/links").bearer_auth(&server.key);
        answer(request.header("idempotency-key", "one").json(&new_link("a")))
    };
    let (first, repeated) = (create().await, create().await);
    assert_eq!((tag(&first), tag(&repeated)), ("\"1\"", "\"1\""));
    let upsert = |name: &str, tag: &str| {
        let mut link = new_link(name);
        link["external_id"] = "mine".into();
        let request = server.request(Method::PUT, "/api/v1/links/upsert").bearer_auth(&server.key);
        answer(request.header(IF_MATCH, tag).json(&link))
    };
    assert_eq!(upsert("a", "\"1\"").await.status, 412, "there is none");
    let (created, changed) = (upsert("a", "*").await, upsert("b", "\"1\"").await);
    assert_eq!((created.status, tag(&created)), (StatusCode::CREATED, "\"1\""));
    assert_eq!((changed.status, tag(&changed)), (StatusCode::OK, "\"2\""));
    assert_eq!(upsert("c", "\"1\"").await.status, 412);
}

#[tokio::test]
async fn an_unknown_query_parameter_is_refused_and_nothing_is_done() {
    let server = Server::start().await;
    let link = server.create_link(new_link("a")).await;
    let link = format!("/api/v1/links/{}", text(&link["id"]));
    let endpoint = json!({"url": "https://hooks.example.com/", "events": ["link.created"]});
    let endpoint = server.send(Method::POST, "/api/v1/webhooks", Some(endpoint)).await;
    let endpoint = format!("/api/v1/webhooks/{}", text(&endpoint.body["id"]));
    let named = |answer: &Answer| {
        (answer.status.as_u16(), answer.body["details"][0]["field"].as_str().unwrap_or_default().to_owned())
    };
    let paths = ["links", "clicks", "conversions", "live", "webhooks", "usage", "stats", "stats/country"]
        .map(|path| format!("/api/v1/{path}"));
    let of_link = ["", "/qr", "/stats", "/stats/os", "/clicks", "/conversions", "/live"]
        .map(|path| format!("{link}{path}"));
    let of_endpoint = ["", "/failures"].map(|path| format!("{endpoint}{path}"));
    for path in paths.iter().chain(&of_link).chain(&of_endpoint) {
        let refused = server.send(Method::GET, &format!("{path}?nonsense=1"), None).await;
        assert_eq!(named(&refused), (400, "nonsense".to_owned()), "{path}: {}", refused.body);
    }
    for (method, path, body) in [
        (Method::GET, "/api/usage?start_date=garbage".to_owned(), None),
        (Method::POST, "/api/v1/links?start_date=1".to_owned(), Some(new_link("b"))),
        (Method::PATCH, format!("{link}?start_date=1"), Some(json!({"name": "b"}))),
        (Method::DELETE, format!("{link}?start_date=1"), None),
        (Method::POST, format!("{endpoint}/test?start_date=1"), None),
        (Method::POST, format!("{endpoint}/rotate-secret?start_date"), None),
    ] {
        let refused = server.send(method.clone(), &path, body).await;
        assert_eq!(named(&refused), (400, "start_date".to_owned()), "{method} {path}: {}", refused.body);
    }
    let links = server.send(Method::GET, "/api/v1/links", None).await;
    let names: Vec<&Value> =
        links.body["links"].as_array().unwrap().iter().map(|link| &link["name"]).collect();
    assert_eq!(names, ["a"], "nothing was created, changed or deleted");
    let browser = Browser::set_up(&server).await;
    let refused = browser.send(Method::GET, "/app/api/session?nonsense=1", None).await;
    assert_eq!(named(&refused), (400, "nonsense".to_owned()));
}

#[tokio::test]
async fn a_method_that_is_not_allowed_is_answered_with_those_that_are() {
    let server = Server::start().await;
    for (path, allowed) in [
        ("/", "GET, HEAD"),
        ("/app", "GET, HEAD"),
        ("/app/links", "GET, HEAD"),
        ("/api/openapi.json", "GET, HEAD"),
        ("/api/v1/docs", "GET, HEAD"),
        ("/api/v1/links", "GET, HEAD, POST"),
        ("/api/v1/links/bulk", "POST"),
        ("/api/v1/links/lnk_1", "GET, HEAD, PATCH, DELETE"),
        ("/api/conversions", "GET, HEAD, POST"),
        ("/app/api/session", "GET, HEAD"),
        ("/app/api/sign-in", "POST"),
    ] {
        for method in [Method::TRACE, Method::from_bytes(b"BREW").unwrap()] {
            let refused = answer(server.request(method.clone(), path)).await;
            assert_eq!(
                (refused.status.as_u16(), &refused.headers["allow"]),
                (405, &allowed.parse().unwrap()),
                "{method} {path}"
            );
        }
    }
}

#[tokio::test]
async fn an_answer_without_credentials_names_the_scheme() {
    let server = Server::start().await;
    for path in ["/api/v1/links", "/app/api/session"] {
        let refused = answer(server.request(Method::GET, path)).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.headers["www-authenticate"]),
            (401, &"Bearer".parse().unwrap())
        );
    }
}

#[tokio::test]
async fn long_answers_are_compressed() {
    let server = Server::start().await;
    let links: Vec<Value> = (0..10).map(|number| new_link(&format!("link {number}"))).collect();
    server.send(Method::POST, "/api/v1/links/bulk", Some(json!({"links": links}))).await;
    let read = async |request: RequestBuilder| -> (HeaderMap, Vec<u8>) {
        let answer = request.send().await.unwrap();
        (answer.headers().clone(), answer.bytes().await.unwrap().to_vec())
    };
    for path in ["/api/v1/links", "/api/openapi.json", "/api/docs"] {
        let keyed = || server.request(Method::GET, path).bearer_auth(&server.key);
        let (_, plain) = read(keyed()).await;
        let (headers, gzip) = read(keyed().header(ACCEPT_ENCODING, "br, gzip")).await;
        assert_eq!(
            (&headers["content-encoding"], &headers["vary"]),
            (&"gzip".parse().unwrap(), &"Accept-Encoding".parse().unwrap()),
            "{path}"
        );
        let mut decoded = Vec::new();
        GzDecoder::new(&*gzip).read_to_end(&mut decoded).unwrap();
        assert_eq!(decoded.len(), plain.len(), "{path}");
        assert!(gzip.len() * 2 < plain.len(), "{path}: {} of {}", gzip.len(), plain.len());
    }
    let (headers, _) = read(server.request(Method::GET, "/api/openapi.json")).await;
    let again = server.request(Method::GET, "/api/openapi.json").header(IF_NONE_MATCH, &headers[ETAG]);
    assert_eq!(again.send().await.unwrap().status(), 304);
}
