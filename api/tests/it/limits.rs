//! Rate limits, and requests of other origins.

use std::collections::BTreeMap;

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::dashboard::Browser;
use crate::server::{Answer, Server, answer, config};

fn number(answer: &Answer, header: &str) -> i64 {
    answer.headers[header].to_str().unwrap().parse().unwrap()
}

async fn set_plan(server: &Server, plan: &str) {
    sqlx::query("UPDATE accounts SET plan = $1")
        .bind(plan)
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
}

#[tokio::test]
async fn an_accounts_rate_limit_is_shared_by_keys_and_instances() {
    let one = Server::start().await;
    let other = Server::serve(one.engines.clone(), config(&one.engines)).await;
    set_plan(&one, "free").await;
    let second_key = one.create_key(&one.workspace, "read").await;

    // Answers by the window in their headers, because a minute may begin during the test.
    let mut windows: BTreeMap<i64, Vec<Answer>> = BTreeMap::new();
    while windows.values().all(|answers| answers.len() < 70) {
        let sent = windows.values().map(Vec::len).sum::<usize>();
        let server = if sent % 2 == 0 { &one } else { &other };
        let key = if sent % 3 == 0 { &one.key } else { &second_key };
        let answer = server.send_as(key, Method::GET, "/api/links", None).await;
        windows.entry(number(&answer, "x-ratelimit-reset")).or_default().push(answer);
    }
    for (reset, answers) in &windows {
        assert_eq!(reset % 60, 0, "a window ends with a full minute");
        let allowed: Vec<&Answer> = answers.iter().filter(|answer| answer.status == StatusCode::OK).collect();
        assert_eq!(allowed.len(), answers.len().min(60));
        for (used, answer) in (1..).zip(&allowed) {
            assert_eq!(
                (number(answer, "x-ratelimit-limit"), number(answer, "x-ratelimit-remaining")),
                (60, 60 - used)
            );
        }
        for refused in answers.iter().filter(|answer| answer.status != StatusCode::OK) {
            assert_eq!((refused.status.as_u16(), &refused.body["code"]), (429, &json!("RATE_LIMITED")));
            assert_eq!(number(refused, "x-ratelimit-remaining"), 0);
            assert!((1..=60).contains(&number(refused, "retry-after")));
        }
    }
}

#[tokio::test]
async fn requests_at_once_never_exceed_the_plan() {
    let server = Server::start().await;
    set_plan(&server, "free").await;
    let asking = (0..150).map(|_| server.send(Method::GET, "/api/links", None));
    let answers = futures_util::future::join_all(asking).await;
    let mut allowed: BTreeMap<i64, usize> = BTreeMap::new();
    for answer in answers.iter().filter(|answer| answer.status == StatusCode::OK) {
        *allowed.entry(number(answer, "x-ratelimit-reset")).or_default() += 1;
    }
    assert!(allowed.values().all(|count| *count <= 60), "{allowed:?}");
    assert!(allowed.values().any(|count| *count == 60), "{allowed:?}");
}

#[tokio::test]
async fn an_answer_names_the_minute_that_its_request_counted_in() {
    let server = Server::start().await;
    set_plan(&server, "free").await;
    server.send(Method::GET, "/api/links", None).await;
    // As if the request had waited for its account's row since an earlier minute.
    let later = "UPDATE request_windows SET minute = minute + interval '1 hour'
                 RETURNING extract(epoch FROM minute + interval '1 minute')::bigint";
    let end: i64 = sqlx::query_scalar(later).fetch_one(&mut server.engines.postgres().await).await.unwrap();
    let answer = server.send(Method::GET, "/api/links", None).await;
    assert_eq!((number(&answer, "x-ratelimit-remaining"), number(&answer, "x-ratelimit-reset")), (58, end));
}

#[tokio::test]
async fn every_answer_has_rate_limit_headers_and_is_not_stored() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let path = format!("/api/links/{}", link["id"].as_str().unwrap());
    let keyed = |method, path: &str| server.request(method, path).bearer_auth(&server.key);
    for (request, status, limit) in [
        (keyed(Method::GET, "/api/links"), 200, 2_147_483_647),
        (keyed(Method::GET, "/api/links?limit=101"), 400, 2_147_483_647),
        (keyed(Method::POST, "/api/links").body("x"), 415, 2_147_483_647),
        (keyed(Method::GET, "/api/links/nothing"), 404, 2_147_483_647),
        (keyed(Method::DELETE, &path), 204, 2_147_483_647),
        (server.request(Method::GET, "/api/links"), 401, 600),
        (server.request(Method::GET, "/api/nothing"), 404, 600),
        (server.request(Method::PUT, "/api/conversions"), 405, 600),
        (server.request(Method::POST, "/api/conversions").json(&json!({})), 400, 600),
        (server.request(Method::OPTIONS, "/api/links"), 204, 600),
    ] {
        let shown = format!("{request:?}");
        let answer = answer(request).await;
        assert_eq!(answer.status, status, "{shown}");
        assert_eq!(number(&answer, "x-ratelimit-limit"), limit, "{shown}");
        assert!(number(&answer, "x-ratelimit-remaining") <= limit, "{shown}");
        assert!(number(&answer, "x-ratelimit-reset") > 1_700_000_000, "{shown}");
        assert_eq!(answer.headers["cache-control"], "private, no-store", "{shown}");
    }
}

#[tokio::test]
async fn the_description_may_be_stored_and_is_not_framed() {
    let server = Server::start().await;
    for path in ["/api/openapi.json", "/api/v1/docs"] {
        let answer = server.request(Method::GET, path).send().await.unwrap();
        assert_eq!(
            (answer.status(), &answer.headers()["cache-control"]),
            (StatusCode::OK, &"public, max-age=300".parse().unwrap())
        );
        if path.ends_with("docs") {
            let policy = answer.headers()["content-security-policy"].to_str().unwrap();
            assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        }
    }
}

#[tokio::test]
async fn only_requests_without_a_known_key_count_for_the_address() {
    let engines = tests::engines::isolated().await;
    let mut strict = config(&engines);
    // An address may send one request a minute.
    strict.address_requests_per_minute = 1.try_into().unwrap();
    strict.trusted_proxies = "127.0.0.0/8".parse().unwrap();
    let owner = Server::start_on(engines.clone()).await;
    let server = Server::serve(engines, strict).await;
    let another_key = owner.create_key(&owner.workspace, "read").await;
    let from = async |address: &str, request: reqwest::RequestBuilder| {
        answer(request.header("x-forwarded-for", address)).await
    };
    let without_key = || server.request(Method::GET, "/api/links");
    let keyed = |key: &str| without_key().bearer_auth(key);
    // A key that this instance does not know counts for the address, valid or not.
    assert_eq!(from("198.51.100.1", keyed(&owner.key)).await.status, 200);
    let refused = from("198.51.100.1", without_key()).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (429, &json!("RATE_LIMITED")));
    assert!(refused.headers.contains_key("retry-after") && refused.headers.contains_key("x-request-id"));
    assert_eq!(from("198.51.100.1", keyed(&owner.key)).await.status, 200, "an accepted key continues");
    assert_eq!(from("198.51.100.1", keyed(&another_key)).await.status, 429, "another key is not looked up");

    // Nor is a session that this instance does not know.
    let mut browser = Browser::set_up(&owner).await;
    browser.at(&server);
    let session = || browser.bare(Method::GET, "/app/api/session");
    assert_eq!(from("198.51.100.1", session()).await.status, 429);
    let mut others = (2..).map(|number| format!("198.51.100.{number}"));
    assert_eq!(from(&others.next().unwrap(), session()).await.status, 200);

    // Each request that fails counts: without a key, to an unknown path, a conversion.
    let failing = [
        (without_key(), 401),
        (server.request(Method::GET, "/api/nothing"), 404),
        (server.request(Method::POST, "/api/conversions").json(&json!({"click_id": "forged"})), 404),
    ];
    for (request, status) in failing {
        let mut address = others.next().unwrap();
        let mut first = from(&address, request.try_clone().unwrap()).await;
        if first.status == 429 {
            // One address in 100,000 shares the budget of another one. Two in a row do not.
            address = others.next().unwrap();
            first = from(&address, request.try_clone().unwrap()).await;
        }
        assert_eq!(first.status, status);
        assert_eq!(from(&address, request).await.status, 429, "after {status}");
    }
}

#[tokio::test]
async fn cross_origin_requests_may_use_authorization_only() {
    let server = Server::start().await;
    let preflight = |path: &str, method: &str| {
        let request = server.request(Method::OPTIONS, path).header("origin", "https://shop.example");
        answer(request.header("access-control-request-method", method))
    };
    let links = preflight("/api/v1/links", "POST").await;
    assert_eq!(links.status, 204);
    assert_eq!(links.headers["access-control-allow-origin"], "*");
    assert_eq!(links.headers["access-control-allow-methods"], "GET, HEAD, POST");
    assert_eq!(links.headers["access-control-allow-headers"], "Authorization, Content-Type");
    let conversions = preflight("/api/conversions", "POST").await;
    assert_eq!(conversions.headers["access-control-allow-headers"], "Content-Type");
    assert_eq!(preflight("/api/nothing", "GET").await.status, 404);

    let refused =
        answer(server.request(Method::GET, "/api/links").header("origin", "https://shop.example")).await;
    assert_eq!(refused.headers["access-control-allow-origin"], "*", "a page may read the error");
    let exposed = refused.headers["access-control-expose-headers"].to_str().unwrap();
    assert!(exposed.contains("X-RateLimit-Remaining") && exposed.contains("Retry-After"));
}
