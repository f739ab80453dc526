//! The cap, and links above it.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tests::eventually;
use tests::log::records;

use crate::server::{Server, text};

fn link() -> Value {
    json!({"name": "a", "destination": "https://example.com"})
}

#[tokio::test]
async fn fifty_creations_at_the_cap_fill_it_exactly() {
    let server = Server::start_with_cap(3).await;
    let arguments =
        ["create-workspace", "--account", &server.account, "--name", "Other", "--kind", "organization"];
    let other = text(&server.admin(&arguments).await["workspace_id"]);
    let other = server.create_key(&other, "read,write").await;
    let answers = join_all((0..50).map(|n| {
        let key = if n % 2 == 0 { &server.key } else { &other };
        server.send_as(key, Method::POST, "/api/links", Some(link()))
    }))
    .await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 3);
    for refused in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("PLAN_LIMIT")));
    }
}

#[tokio::test]
async fn a_locked_link_can_be_deleted_and_not_edited() {
    let server = Server::start_with_cap(2).await;
    let mut links = Vec::new();
    for n in 0..2 {
        let body = json!({"name": "a", "destination": "https://example.com", "external_id": format!("x{n}")});
        links.push(server.create_link(body).await);
    }
    sqlx::query("UPDATE links SET is_locked = true")
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    let path = format!("/api/links/{}", text(&links[0]["id"]));
    assert_eq!(server.send(Method::GET, &path, None).await.body["is_locked"], true);
    for (method, path, body) in [
        (Method::PATCH, path.as_str(), json!({"name": "b"})),
        (Method::PATCH, path.as_str(), json!({"is_active": false})),
        (Method::PATCH, path.as_str(), json!({})),
        (Method::PUT, "/api/links/upsert", json!({"external_id": "x0", "name": "b"})),
    ] {
        let refused = server.send(method, path, Some(body)).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("LINK_LOCKED")));
    }
    assert_eq!(server.send(Method::DELETE, &path, None).await.status, 204);
}

#[tokio::test]
async fn a_deletion_unlocks_the_oldest_locked_link() {
    let server = Server::start_with_cap(3).await;
    let mut paths = Vec::new();
    for _ in 0..3 {
        paths.push(format!("/api/links/{}", text(&server.create_link(link()).await["id"])));
    }
    // Two locked links above the cap, as after a downgrade.
    sqlx::query(
        "INSERT INTO links (id, workspace_id, user_id, slug, name, destination, is_locked, created_at, updated_at)
         SELECT gen_random_uuid(), workspace_id, user_id, 'locked' || n, 'locked' || n, 'https://example.com', true,
                now() + n * interval '1 second', now()
         FROM generate_series(1, 2) n, (SELECT * FROM links LIMIT 1) l",
    )
    .execute(&mut server.engines.postgres().await)
    .await
    .unwrap();
    let locked = async || -> Vec<String> {
        let listed = server.send(Method::GET, "/api/links?is_locked=true&sort=name", None).await.body;
        listed["links"].as_array().unwrap().iter().map(|link| text(&link["name"])).collect()
    };
    assert_eq!(locked().await, ["locked1", "locked2"]);
    assert_eq!(server.send(Method::DELETE, &paths[0], None).await.status, 204);
    assert_eq!(locked().await, ["locked2"]);
    let refused = server.send(Method::POST, "/api/links", Some(link())).await;
    assert_eq!(refused.body["code"], "PLAN_LIMIT", "the unlocked link takes the free place");
    assert_eq!(server.send(Method::DELETE, &paths[1], None).await.status, 204);
    assert!(locked().await.is_empty());

    let events = eventually("both changes are published", async || {
        let events = records(&server.engines, schemas::topic::LINK_EVENTS);
        if events.len() >= 7 { Ok(events) } else { Err(events.len()) }
    })
    .await;
    // The records of two links may be in two partitions, so their order may differ.
    let mut unlocked: Vec<Value> = events
        .iter()
        .map(tests::log::Record::json)
        .filter(|event| event["event"] == "link.updated")
        .map(|event| json!([event["data"]["name"], event["data"]["is_locked"], event["data"]["changed"]]))
        .collect();
    unlocked.sort_by_key(|event| text(&event[0]));
    assert_eq!(
        unlocked,
        [json!(["locked1", false, ["is_locked"]]), json!(["locked2", false, ["is_locked"]])]
    );
}
