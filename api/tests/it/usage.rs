//! `GET /usage`

use reqwest::Method;
use serde_json::json;

use crate::server::{Server, text};

#[tokio::test]
async fn usage_covers_the_whole_account() {
    let server = Server::start().await;
    let link = json!({"name": "a", "destination": "https://example.com"});
    server.create_link(link.clone()).await;
    let arguments =
        ["create-workspace", "--account", &server.account, "--name", "Other", "--kind", "organization"];
    let other = text(&server.admin(&arguments).await["workspace_id"]);
    let other = server.create_key(&other, "read,write").await;
    assert_eq!(server.send_as(&other, Method::POST, "/api/links", Some(link)).await.status, 201);

    let reader = server.create_key(&server.workspace, "read").await;
    let usage = server.send_as(&reader, Method::GET, "/api/v1/usage", None).await;
    assert_eq!(usage.status, 200);
    assert_eq!(
        usage.body,
        json!({
            "plan": "business",
            "limits": {"links": null, "requests_per_minute": null, "retention_days": 1_095},
            "used": {"links": 2},
        }),
        "null is unlimited"
    );

    server.admin(&["set-plan", "--account", &server.account, "--plan", "free"]).await;
    let usage = server.send_as(&reader, Method::GET, "/api/usage", None).await;
    assert_eq!(
        usage.body,
        json!({
            "plan": "free",
            "limits": {"links": 25, "requests_per_minute": 60, "retention_days": 30},
            "used": {"links": 2},
        })
    );
    assert_eq!(server.send_as("nonsense", Method::GET, "/api/usage", None).await.status, 401);
}
