//! Links by the caller's ids.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tests::eventually;
use tests::log::records;

use crate::server::{Answer, Server};

async fn upsert(server: &Server, body: Value) -> Answer {
    server.send(Method::PUT, "/api/v1/links/upsert", Some(body)).await
}

#[tokio::test]
async fn a_link_is_created_once_and_then_changed() {
    let server = Server::start().await;
    let body = json!({"external_id": "order 1", "name": "a", "destination": "https://example.com"});
    let created = upsert(&server, body.clone()).await;
    assert_eq!(created.status, 201, "{}", created.body);
    assert!(created.headers.contains_key("location"));
    assert_eq!(created.body["external_id"], "order 1");

    let unchanged = upsert(&server, body).await;
    assert_eq!((unchanged.status.as_u16(), &unchanged.body["id"]), (200, &created.body["id"]));
    assert_eq!(unchanged.body["updated_at"], created.body["updated_at"]);
    let changed = upsert(&server, json!({"external_id": "order 1", "name": "b", "is_active": false})).await;
    assert_eq!((changed.status.as_u16(), &changed.body["name"]), (200, &json!("b")));
    assert_eq!(changed.body["destination"], "https://example.com", "only supplied fields change");
    assert_eq!(changed.body["slug"], created.body["slug"]);

    let published = eventually("both changes are published", async || {
        let published = records(&server.engines, schemas::topic::LINK_EVENTS);
        if published.len() >= 2 { Ok(published) } else { Err(published.len()) }
    })
    .await;
    let events: Vec<Value> = published.iter().map(|record| record.json()["event"].clone()).collect();
    assert_eq!(events, ["link.created", "link.updated"], "an empty change publishes nothing");
    assert_eq!(published[1].json()["data"]["changed"], json!(["name", "is_active"]));
}

#[tokio::test]
async fn an_invalid_link_is_rejected() {
    let server = Server::start().await;
    server.create_link(json!({"name": "a", "destination": "https://example.com", "slug": "taken"})).await;
    for (body, field) in [
        (json!({"name": "a", "destination": "https://example.com"}), "external_id"),
        (json!({"external_id": null, "name": "a", "destination": "https://example.com"}), "external_id"),
        (json!({"external_id": "", "name": "a", "destination": "https://example.com"}), "external_id"),
        (json!({"external_id": "a\u{0}", "name": "a", "destination": "https://example.com"}), "external_id"),
        (json!({"external_id": "x", "destination": "https://example.com"}), "name"),
        (json!({"external_id": "x", "name": "a"}), "destination"),
        (json!({"external_id": "x", "name": null, "destination": "https://example.com"}), "name"),
    ] {
        let refused = upsert(&server, body.clone()).await;
        assert_eq!(refused.status, 400, "{body}");
        assert_eq!(refused.body["details"][0]["field"], field, "{body}");
    }
    let body =
        json!({"external_id": "x", "name": "a", "destination": "https://example.com", "slug": "taken"});
    let refused = upsert(&server, body).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (409, &json!("SLUG_TAKEN")));
}

#[tokio::test]
async fn concurrent_upserts_create_one_link() {
    let server = Server::start().await;
    let requests = (0..30).map(|n| {
        let body = json!({"external_id": "x", "name": format!("n{n}"), "destination": "https://example.com"});
        upsert(&server, body)
    });
    let answers = join_all(requests).await;
    let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!((count(201), count(200)), (1, 29), "{answers:?}");
    assert!(answers.iter().all(|answer| answer.body["id"] == answers[0].body["id"]));
    let listed = server.send(Method::GET, "/api/links", None).await.body;
    assert_eq!(listed["links"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn concurrent_upserts_at_the_cap_create_one_link() {
    let server = Server::start_with_cap(1).await;
    let body = json!({"external_id": "x", "name": "a", "destination": "https://example.com"});
    let answers = join_all((0..10).map(|_| upsert(&server, body.clone()))).await;
    let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!((count(201), count(200)), (1, 9), "{answers:?}");
    let refused =
        upsert(&server, json!({"external_id": "y", "name": "a", "destination": "https://example.com"})).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("PLAN_LIMIT")));
}
