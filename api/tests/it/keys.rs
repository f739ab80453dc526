//! Permissions of API keys.

use reqwest::Method;
use serde_json::json;

use crate::server::{Server, answer, config, text};

#[tokio::test]
async fn every_invalid_key_gets_the_same_answer() {
    let server = Server::start().await;
    let created = server.admin(&["create-key", "--workspace", &server.workspace, "--scope", "read"]).await;
    let revoked = text(&created["key"]);
    assert_eq!(server.send_as(&revoked, Method::GET, "/api/links", None).await.status, 200);
    server.admin(&["revoke-key", "--key-id", &text(&created["key_id"])]).await;
    let past = ["--expires-at", "2020-01-01T00:00:00Z"];
    let expired = server
        .admin(&[&["create-key", "--workspace", &server.workspace, "--scope", "read"][..], &past].concat())
        .await;
    let expired = text(&expired["key"]);
    let mut mistyped = server.key.clone();
    mistyped.replace_range(9..10, if mistyped.as_bytes()[9] == b'a' { "b" } else { "a" });
    // A key with a valid checksum that the database does not have.
    let created = server.admin(&["create-key", "--workspace", &server.workspace, "--scope", "read"]).await;
    let unknown = text(&created["key"]);
    let id: schemas::id::KeyId = text(&created["key_id"]).parse().unwrap();
    let removed = sqlx::query("DELETE FROM api_keys WHERE id = $1")
        .bind(id.uuid())
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    assert_eq!(removed.rows_affected(), 1);

    let mut bodies = Vec::new();
    for key in [&revoked, &expired, &mistyped, &unknown, "", "nonsense"] {
        let refused = server.send_as(key, Method::GET, "/api/links", None).await;
        assert_eq!(refused.status, 401, "{key}");
        bodies.push(refused.body);
    }
    bodies.push(answer(server.request(Method::GET, "/api/links")).await.body);
    let with_key = || server.request(Method::GET, "/api/links").bearer_auth(&server.key);
    for two_keys in [
        with_key().header("x-api-key", &revoked),
        with_key().bearer_auth(&revoked),
        server
            .request(Method::GET, "/api/links")
            .header("x-api-key", &server.key)
            .header("x-api-key", &revoked),
    ] {
        bodies.push(answer(two_keys).await.body);
    }
    assert!(bodies.iter().all(|body| body == &bodies[0]), "{bodies:?}");
}

#[tokio::test]
async fn every_instance_rejects_a_revoked_key_at_once() {
    let server = Server::start().await;
    let config = config(&server.engines);
    let others = [
        Server::serve(server.engines.clone(), config.clone()).await,
        Server::serve(server.engines.clone(), config).await,
    ];
    let instances = || std::iter::once(&server).chain(&others);
    let created = server.admin(&["create-key", "--workspace", &server.workspace, "--scope", "read"]).await;
    let key = text(&created["key"]);
    for instance in instances() {
        assert_eq!(instance.send_as(&key, Method::GET, "/api/links", None).await.status, 200);
    }
    server.admin(&["revoke-key", "--key-id", &text(&created["key_id"])]).await;
    for instance in instances() {
        assert_eq!(instance.send_as(&key, Method::GET, "/api/links", None).await.status, 401);
    }
}

#[tokio::test]
async fn read_only_keys_and_read_only_plans_get_different_errors() {
    let server = Server::start().await;
    let body = json!({"name": "a", "destination": "https://example.com"});
    let reader = server.create_key(&server.workspace, "read").await;
    let refused = server.send_as(&reader, Method::POST, "/api/links", Some(body.clone())).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("READ_ONLY_KEY")));

    let other = server.admin(&["create-account", "--name", "Small", "--plan", "pro"]).await;
    let writer = server.create_key(&text(&other["workspace_id"]), "read,write").await;
    let refused = server.send_as(&writer, Method::POST, "/api/links", Some(body)).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("PLAN_REQUIRED")));
    assert_eq!(server.send_as(&writer, Method::GET, "/api/links", None).await.status, 200);
}

#[tokio::test]
async fn an_operators_change_is_audited_without_secrets() {
    let server = Server::start().await;
    let token = server.admin(&["create-edge-token"]).await;
    let rows: Vec<(String, String, serde_json::Value)> =
        sqlx::query_as("SELECT action, subject, details FROM audit_trail ORDER BY id")
            .fetch_all(&mut server.engines.postgres().await)
            .await
            .unwrap();
    let actions: Vec<&str> = rows.iter().map(|(action, ..)| action.as_str()).collect();
    assert_eq!(actions, ["create-account", "create-key", "create-edge-token"]);
    let all = format!("{rows:?}");
    assert!(!all.contains(&server.key) && !all.contains(&text(&token["edge_token"])));
    let account = server.admin(&["show-account", "--account", &server.account]).await;
    assert_eq!(account["workspaces"][0]["workspace_id"], json!(server.workspace));
}
