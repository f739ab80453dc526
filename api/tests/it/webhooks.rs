//! Webhook endpoints over HTTP.

use reqwest::Method;
use serde_json::json;

use crate::server::{Server, text};

#[tokio::test]
async fn a_secret_is_shown_once_and_stored_sealed() {
    let server = Server::start().await;
    let body = json!({"url": "https://hooks.example.com/in", "events": ["click.created", "link.created"]});
    let created = server.send(Method::POST, "/api/webhooks", Some(body)).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let secret = text(&created.body["secret"]);
    assert!(secret.starts_with("whsec_"));
    assert_eq!(created.body["click_classes"], json!(["human"]));

    let path = format!("/api/webhooks/{}", text(&created.body["id"]));
    for path in [path.as_str(), "/api/webhooks"] {
        let shown = server.send(Method::GET, path, None).await;
        assert_eq!(shown.status, 200);
        assert!(!shown.body.to_string().contains("whsec_"), "{path}");
    }
    let stored: Vec<u8> = sqlx::query_scalar("SELECT secret_sealed FROM webhook_endpoints")
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap();
    assert!(!String::from_utf8_lossy(&stored).contains(&secret));

    assert_eq!(server.send(Method::DELETE, &path, None).await.status, 204);
    assert_eq!(server.send(Method::GET, &path, None).await.status, 404);
}

#[tokio::test]
async fn a_url_that_webhooks_may_not_go_to_is_refused_at_creation() {
    let server = Server::start().await;
    for url in [
        "http://hooks.example.com/in",
        "https://127.0.0.1/in",
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "https://2130706433/",
        "https://user:pass@hooks.example.com/",
        "https://go.example/spring",
        "ftp://hooks.example.com",
        "nonsense",
        "",
    ] {
        let body = json!({"url": url, "events": ["click.created"]});
        let refused = server.send(Method::POST, "/api/webhooks", Some(body)).await;
        assert_eq!(refused.status, 400, "{url}");
        assert_eq!(refused.body["details"][0]["field"], "url", "{url}");
    }
    for (body, field) in [
        (json!({"url": "https://hooks.example.com", "events": []}), "events"),
        (json!({"url": "https://hooks.example.com", "events": ["nope"]}), "events"),
        (
            json!({"url": "https://hooks.example.com", "events": ["click.created"], "click_classes": ["x"]}),
            "click_classes",
        ),
    ] {
        let refused = server.send(Method::POST, "/api/webhooks", Some(body)).await;
        assert_eq!((refused.status.as_u16(), &refused.body["details"][0]["field"]), (400, &json!(field)));
    }
}

#[tokio::test]
async fn a_change_of_endpoints_raises_their_version() {
    let server = Server::start().await;
    let version = async || -> i64 {
        sqlx::query_scalar("SELECT version FROM endpoints_version")
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap()
    };
    let before = version().await;
    let body = json!({"url": "https://hooks.example.com/in", "events": ["click.created"]});
    let created = server.send(Method::POST, "/api/webhooks", Some(body)).await.body;
    assert_eq!(version().await, before + 1);
    server.send(Method::DELETE, &format!("/api/webhooks/{}", text(&created["id"])), None).await;
    assert_eq!(version().await, before + 2);
}
