//! The health of an endpoint and the outcome of a delivery over HTTP. The dispatcher has its own tests; these tests
//! fill its tables themselves.

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::server::{Server, text};

async fn create(server: &Server) -> String {
    let body = json!({"url": "https://hooks.example.com/in", "events": ["click.created"]});
    let created = server.send(Method::POST, "/api/webhooks", Some(body)).await;
    assert_eq!(created.status, 201, "{}", created.body);
    text(&created.body["id"])
}

/// Runs a statement without parameters.
async fn run(server: &Server, statement: &'static str) {
    sqlx::query(statement).execute(&mut server.engines.postgres().await).await.unwrap();
}

#[tokio::test]
async fn an_endpoint_shows_its_health() {
    let server = Server::start().await;
    let id = create(&server).await;
    let path = format!("/api/webhooks/{id}");
    let health = async || {
        let shown = server.send(Method::GET, &path, None).await.body;
        let listed = server.send(Method::GET, "/api/webhooks", None).await.body["webhooks"][0].clone();
        let changed = server.send(Method::PATCH, &path, Some(json!({"description": "x"}))).await.body;
        let rotated = server.send(Method::POST, &format!("{path}/rotate-secret"), None).await.body;
        let all = [shown, listed, changed, rotated].map(|endpoint| {
            (
                endpoint["is_failing"].clone(),
                endpoint["last_success_at"].clone(),
                endpoint["last_failure_at"].clone(),
            )
        });
        assert!(all.iter().all(|health| *health == all[0]), "{all:?}");
        all[0].clone()
    };
    assert_eq!(health().await, (json!(false), Value::Null, Value::Null));

    run(&server, "INSERT INTO webhook_health SELECT id, NULL, '2026-11-22T10:00:00Z' FROM webhook_endpoints")
        .await;
    let failure = json!("2026-11-22T10:00:00.000Z");
    assert_eq!(health().await, (json!(true), Value::Null, failure.clone()));

    run(&server, "UPDATE webhook_health SET last_success_at = '2026-11-22T10:00:01Z'").await;
    let success = json!("2026-11-22T10:00:01.000Z");
    assert_eq!(health().await, (json!(false), success.clone(), failure));

    run(&server, "UPDATE webhook_health SET last_failure_at = '2026-11-22T10:00:02Z'").await;
    let failure = json!("2026-11-22T10:00:02.000Z");
    assert_eq!(health().await, (json!(true), success.clone(), failure.clone()));
    run(&server, "UPDATE webhook_endpoints SET status = 'disabled'").await;
    assert_eq!(health().await, (json!(false), success, failure), "a disabled endpoint is not failing");

    run(
        &server,
        "UPDATE webhook_health SET dropped = 7, first_dropped_at = '2026-11-22T10:00:03Z',
                                   last_dropped_at = '2026-11-22T10:00:04Z'",
    )
    .await;
    let shown = server.send(Method::GET, &path, None).await.body;
    assert_eq!(shown["dropped_deliveries"], 7);
    assert_eq!(shown["first_dropped_at"], "2026-11-22T10:00:03.000Z");
    assert_eq!(shown["last_dropped_at"], "2026-11-22T10:00:04.000Z");
}

#[tokio::test]
async fn a_delivery_shows_the_outcome_of_a_test_or_redelivery() {
    let server = Server::start().await;
    let endpoint = create(&server).await;
    let test = server.send(Method::POST, &format!("/api/webhooks/{endpoint}/test"), None).await.body;
    let path = format!("/api/webhooks/{endpoint}/deliveries/{}", text(&test["delivery_id"]));
    let shown = async || server.send(Method::GET, &path, None).await;
    let pending = shown().await.body;
    assert!(pending["next_attempt_at"].is_string());
    assert_eq!(
        pending,
        json!({"delivery_id": test["delivery_id"], "status": "pending", "attempts": 0, "status_code": null,
               "error_class": null, "next_attempt_at": pending["next_attempt_at"], "delivered_at": null})
    );

    // Its only attempt fails and is final.
    run(
        &server,
        "INSERT INTO webhook_failed_deliveries (delivery_id, endpoint_id, workspace_id, event, body, created_at,
                                                status_code, attempts, failed_at)
         SELECT delivery_id, endpoint_id, workspace_id, event, body, created_at, 400, 1, now()
         FROM webhook_deliveries",
    )
    .await;
    run(&server, "DELETE FROM webhook_deliveries").await;
    let failed = shown().await.body;
    assert_eq!(
        (&failed["status"], &failed["attempts"], &failed["status_code"]),
        (&json!("failed"), &json!(1), &json!(400))
    );
    assert_eq!(failed["next_attempt_at"], Value::Null);

    let again = json!({"delivery_ids": [test["delivery_id"]]});
    server.send(Method::POST, &format!("/api/webhooks/{endpoint}/redeliver"), Some(again)).await;
    assert_eq!(shown().await.body["status"], "pending");
    run(&server, "DELETE FROM webhook_deliveries").await;
    run(&server, "UPDATE webhook_failed_deliveries SET delivered_at = now(), attempts = 2").await;
    let delivered = shown().await.body;
    assert_eq!((&delivered["status"], &delivered["attempts"]), (&json!("delivered"), &json!(2)));
    assert!(delivered["delivered_at"].is_string());
}

#[tokio::test]
async fn only_a_kept_delivery_of_the_endpoint_is_found() {
    let server = Server::start().await;
    let (endpoint, other) = (create(&server).await, create(&server).await);
    let test = server.send(Method::POST, &format!("/api/webhooks/{endpoint}/test"), None).await.body;
    let id = text(&test["delivery_id"]);
    let status = async |endpoint: &str, id: &str| {
        server.send(Method::GET, &format!("/api/webhooks/{endpoint}/deliveries/{id}"), None).await.status
    };
    assert_eq!(status(&endpoint, &id).await, 200);
    assert_eq!(status(&other, &id).await, 404);
    assert_eq!(status(&endpoint, &Uuid::now_v7().to_string()).await, 404);
    assert_eq!(status(&endpoint, "nonsense").await, 404);

    // A first attempt that succeeds leaves only this row.
    run(
        &server,
        "INSERT INTO webhook_finished (delivery_id, finished_at, delivered_to, attempts)
         SELECT delivery_id, now(), endpoint_id, 1 FROM webhook_deliveries",
    )
    .await;
    run(&server, "DELETE FROM webhook_deliveries").await;
    assert_eq!((status(&endpoint, &id).await.as_u16(), status(&other, &id).await.as_u16()), (200, 404));
    run(&server, "UPDATE webhook_finished SET finished_at = now() - interval '25 hours'").await;
    assert_eq!(status(&endpoint, &id).await, 404);
}
