//! Repeated requests.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, Server, answer, text};

async fn create(server: &Server, key: &str, path: &str, body: &Value) -> Answer {
    let request = server.request(Method::POST, path).bearer_auth(&server.key).header("idempotency-key", key);
    answer(request.json(body)).await
}

async fn links(server: &Server) -> usize {
    server.send(Method::GET, "/api/links?limit=100", None).await.body["links"].as_array().unwrap().len()
}

fn link() -> Value {
    json!({"name": "a", "destination": "https://example.com"})
}

#[tokio::test]
async fn a_repeated_request_under_a_key_gets_the_same_answer() {
    let server = Server::start().await;
    let first = create(&server, "order-1", "/api/links", &link()).await;
    assert_eq!(first.status, 201);
    // Neither the order of the fields nor the prefix of the path makes it another request.
    let reordered = json!({"destination": "https://example.com", "name": "a"});
    for (path, body) in [("/api/links", link()), ("/api/v1/links", reordered)] {
        let again = create(&server, "order-1", path, &body).await;
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert_eq!(again.headers["location"], first.headers["location"]);
    }
    assert_eq!(links(&server).await, 1);
    // After the link was deleted, the answer is still that of the first request.
    let path = format!("/api/links/{}", text(&first.body["id"]));
    server.send(Method::DELETE, &path, None).await;
    assert_eq!(create(&server, "order-1", "/api/links", &link()).await.body, first.body);
    assert_eq!(links(&server).await, 0);
}

#[tokio::test]
async fn another_request_under_a_key_is_a_conflict() {
    let server = Server::start().await;
    assert_eq!(create(&server, "k", "/api/links", &link()).await.status, 201);
    let other = json!({"name": "b", "destination": "https://example.com"});
    for (path, body) in [("/api/links", other), ("/api/links/bulk", json!({"links": [link()]}))] {
        let refused = create(&server, "k", path, &body).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (409, &json!("IDEMPOTENCY_CONFLICT")));
    }
    assert_eq!(links(&server).await, 1);
    // Each workspace has its own keys.
    let arguments =
        ["create-workspace", "--account", &server.account, "--name", "Other", "--kind", "organization"];
    let other = text(&server.admin(&arguments).await["workspace_id"]);
    let stranger = server.create_key(&other, "read,write").await;
    let request =
        server.request(Method::POST, "/api/links").bearer_auth(stranger).header("idempotency-key", "k");
    let body = json!({"name": "theirs", "destination": "https://example.com"});
    assert_eq!(answer(request.json(&body)).await.status, 201);
}

#[tokio::test]
async fn concurrent_requests_under_one_key_create_one_link() {
    let server = Server::start().await;
    let body = link();
    let answers = join_all((0..20).map(|_| create(&server, "k", "/api/links", &body))).await;
    assert!(answers.iter().all(|answer| answer.status == 201), "{answers:?}");
    assert!(answers.iter().all(|answer| answer.body == answers[0].body));
    assert_eq!(links(&server).await, 1);
}

#[tokio::test]
async fn a_rejected_request_leaves_its_key_free() {
    let server = Server::start().await;
    let holder = server
        .create_link(json!({"name": "a", "destination": "https://example.com", "slug": "spring"}))
        .await;
    let body = json!({"name": "b", "destination": "https://example.com", "slug": "spring"});
    assert_eq!(create(&server, "k", "/api/links", &body).await.status, 409);
    let path = format!("/api/links/{}", text(&holder["id"]));
    assert_eq!(server.send(Method::DELETE, &path, None).await.status, 204);
    assert_eq!(create(&server, "k", "/api/links", &body).await.status, 201);
}

#[tokio::test]
async fn a_killed_request_leaves_its_key_free() {
    let server = Server::start().await;
    // As if a process had died between the insert of the key and the commit: the server ends its transaction.
    let mut dying = server.engines.postgres().await;
    for statement in [
        "BEGIN",
        "INSERT INTO idempotency_keys (workspace_id, key, request_sha256, created_at)
         SELECT id, 'k', 'x', now() FROM workspaces",
    ] {
        sqlx::query(statement).execute(&mut dying).await.unwrap();
    }
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut dying).await.unwrap();
    let body = link();
    let waiting = create(&server, "k", "/api/links", &body);
    let killing = async {
        let mut operator = server.engines.postgres().await;
        tests::eventually("the request waits for the key", async || {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_locks
                 WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())",
            )
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap();
            if waiting > 0 { Ok(()) } else { Err("no request waits") }
        })
        .await;
        sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(&mut operator).await.unwrap();
    };
    let (created, ()) = tokio::join!(waiting, killing);
    assert_eq!(created.status, 201, "{}", created.body);
    assert_eq!(links(&server).await, 1);
}

#[tokio::test]
async fn an_idempotency_key_expires_after_a_day() {
    let server = Server::start().await;
    let first = create(&server, "k", "/api/links", &link()).await;
    sqlx::query("UPDATE idempotency_keys SET created_at = now() - interval '24 hours'")
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    let second = create(&server, "k", "/api/links", &link()).await;
    assert_eq!(second.status, 201);
    assert_ne!(second.body["id"], first.body["id"]);
    assert_eq!(create(&server, "k", "/api/links", &link()).await.body, second.body);
}

#[tokio::test]
async fn old_keys_are_removed() {
    let server = Server::start().await;
    create(&server, "old", "/api/links", &link()).await;
    sqlx::query("UPDATE idempotency_keys SET created_at = now() - interval '25 hours'")
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    create(&server, "young", "/api/links", &link()).await;
    // An instance also sweeps when it starts.
    let config = crate::server::config(&server.engines);
    let other = Server::serve(server.engines.clone(), config).await;
    tests::eventually("the old key is removed", async || {
        let keys: Vec<String> = sqlx::query_scalar("SELECT key FROM idempotency_keys")
            .fetch_all(&mut server.engines.postgres().await)
            .await
            .unwrap();
        if keys == ["young"] { Ok(()) } else { Err(keys) }
    })
    .await;
    other.stop().await;
}

#[tokio::test]
async fn an_invalid_idempotency_key_is_rejected() {
    let server = Server::start().await;
    for key in ["", "a b", "schlüssel", &"x".repeat(256)] {
        let refused = create(&server, key, "/api/links", &link()).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!("BAD_REQUEST")), "{key}");
        assert_eq!(refused.body["details"][0]["field"], "Idempotency-Key");
    }
    assert_eq!(links(&server).await, 0);
}

#[tokio::test]
async fn a_bulk_request_that_created_nothing_leaves_its_key_free() {
    let server = Server::start().await;
    let bad = json!({"links": [{"name": "a", "destination": "nowhere"}]});
    let first = create(&server, "k", "/api/links/bulk", &bad).await;
    assert_eq!(first.status, 200);
    assert_eq!(first.body["results"][0]["status"], 400);
    let good = json!({"links": [link()]});
    assert_eq!(create(&server, "k", "/api/links/bulk", &good).await.body["results"][0]["status"], 201);
}

#[tokio::test]
async fn a_bulk_request_is_idempotent() {
    let server = Server::start().await;
    let body = json!({"links": [link(), {"name": "no destination"}]});
    let first = create(&server, "k", "/api/links/bulk", &body).await;
    assert_eq!(first.status, 200);
    assert_eq!(create(&server, "k", "/api/links/bulk", &body).await.body, first.body);
    assert_eq!(links(&server).await, 1);
}
