//! Unreachable engines, and invalid requests.

use reqwest::Method;
use serde_json::{Value, json};
use tests::engines::{http_client, isolated};
use tests::eventually;

use crate::server::{Server, answer, in_production};

#[tokio::test]
async fn the_api_starts_without_engines_and_names_them() {
    let mut engines = isolated().await;
    engines.kafka_brokers = "127.0.0.1:1".to_owned();
    engines.database_url = "postgres://nobody@127.0.0.1:1/none".to_owned();
    let config = in_production(&engines);
    let server = Server::serve(engines, config).await;
    let ready = answer(http_client().get(format!("{}/readyz", server.operations))).await;
    assert_eq!(ready.status, 503);
    assert_eq!(
        (&ready.body["checks"]["kafka"]["ready"], &ready.body["checks"]["postgres"]["ready"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(answer(http_client().get(format!("{}/healthz", server.operations))).await.status, 200);

    let well_formed = unknown_key();
    let refused = server.send_as(&well_formed, Method::GET, "/api/links", None).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (503, &json!("UNAVAILABLE")));
    assert!(refused.headers.contains_key("retry-after"));
    // A missing or malformed key is rejected without a statement.
    let mut damaged = well_formed.clone();
    damaged.replace_range(10..11, "1");
    for key in ["", "nonsense", &damaged] {
        let refused = server.send_as(key, Method::GET, "/api/links", None).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (401, &json!("UNAUTHORIZED")), "{key}");
    }
    server.stop().await;
}

#[tokio::test]
async fn readyz_names_unreachable_engines_and_requires_only_postgres() {
    let unreachable = "127.0.0.1:1";
    let mut without_postgres = isolated().await;
    without_postgres.database_url = format!("postgres://nobody@{unreachable}/none");
    let mut without_kafka = isolated().await;
    without_kafka.kafka_brokers = unreachable.to_owned();
    let mut without_clickhouse = isolated().await;
    without_clickhouse.clickhouse_url = format!("http://{unreachable}/none");
    for (engines, down, status) in [
        (without_postgres, "postgres", 503),
        (without_kafka, "kafka", 200),
        (without_clickhouse, "clickhouse", 200),
    ] {
        let config = in_production(&engines);
        let server = Server::serve(engines, config).await;
        eventually(&format!("{down} alone is not ready"), async || {
            let answer = answer(http_client().get(format!("{}/readyz", server.operations))).await;
            let checks = answer.body["checks"].as_object().unwrap();
            let is_as_expected = checks.iter().all(|(name, check)| check["ready"] == (name != down));
            if is_as_expected && answer.status == status { Ok(()) } else { Err(answer) }
        })
        .await;
        server.stop().await;
    }
}

/// Returns a key with a valid checksum that no database has.
fn unknown_key() -> String {
    "hop_live_000000000000000000000000000000002Qs0Tq".to_owned()
}

#[tokio::test]
async fn an_invalid_request_gets_the_common_error_body() {
    let server = Server::start().await;
    let post = |body: &'static str| {
        server
            .request(Method::POST, "/api/links")
            .bearer_auth(&server.key)
            .header("content-type", "application/json")
            .body(body)
    };
    for (request, status, code) in [
        (post("{"), 400, "BAD_REQUEST"),
        (post("[]"), 400, "BAD_REQUEST"),
        (post("\"\""), 400, "BAD_REQUEST"),
        (post("{\"name\":1}"), 400, "BAD_REQUEST"),
        (post("{\"name\":\"a\",\"name\":\"b\"}"), 400, "BAD_REQUEST"),
        (post("{}"), 400, "BAD_REQUEST"),
        (post("{\"nope\":1}"), 400, "BAD_REQUEST"),
        (
            server.request(Method::POST, "/api/links").bearer_auth(&server.key).body("a=b"),
            415,
            "UNSUPPORTED_MEDIA_TYPE",
        ),
        (server.request(Method::PUT, "/api/links").bearer_auth(&server.key), 405, "METHOD_NOT_ALLOWED"),
        (server.request(Method::GET, "/api/nothing"), 404, "NOT_FOUND"),
        (server.request(Method::GET, "/api/links/nonsense").bearer_auth(&server.key), 404, "NOT_FOUND"),
        (server.request(Method::GET, "/api/links?nope=1").bearer_auth(&server.key), 400, "BAD_REQUEST"),
        (server.request(Method::GET, "/api/links?cursor=zzz").bearer_auth(&server.key), 400, "BAD_REQUEST"),
    ] {
        let shown = format!("{request:?}");
        let refused = answer(request).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (status, &json!(code)), "{shown}");
        assert_eq!(refused.body["statusCode"], status);
        assert!(refused.headers.contains_key("x-request-id"));
        assert_ne!(refused.body["message"], Value::Null);
    }
    let large = json!({"name": "a".repeat(70_000), "destination": "https://example.com"});
    let refused = server.send(Method::POST, "/api/links", Some(large)).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (413, &json!("PAYLOAD_TOO_LARGE")));
}
