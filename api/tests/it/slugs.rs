//! Concurrent requests for a slug, and slugs that move to another link.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use reqwest::Method;
use schemas::message::{LinkRecord, Message as _};
use serde_json::{Value, json};
use tests::log::records;

use crate::server::{Server, config, text};

fn with_slug(slug: &str) -> Value {
    json!({"name": "a", "destination": "https://example.com", "slug": slug})
}

/// Returns the link of each slug, as an edge derives it from topic `links`.
async fn edges_map(server: &Server) -> BTreeMap<String, String> {
    server.all_published().await;
    let mut slugs: BTreeMap<String, String> = BTreeMap::new();
    for record in records(&server.engines, schemas::topic::LINKS) {
        // The link loses its former slug; a slug that another link took meanwhile stays with that link.
        slugs.retain(|_, link| *link != record.key);
        if let LinkRecord::Live(link) = LinkRecord::decode(&record.value).unwrap() {
            slugs.insert(link.slug, record.key);
        }
    }
    slugs
}

async fn stored_map(server: &Server) -> BTreeMap<String, String> {
    let rows: Vec<(String, uuid::Uuid)> = sqlx::query_as("SELECT slug, id FROM links")
        .fetch_all(&mut server.engines.postgres().await)
        .await
        .unwrap();
    rows.into_iter().map(|(slug, id)| (slug, schemas::id::LinkId::from_uuid(id).to_string())).collect()
}

#[tokio::test]
async fn fifty_requests_for_a_slug_create_one_link() {
    let server = Server::start().await;
    let answers =
        join_all((0..50).map(|_| server.send(Method::POST, "/api/links", Some(with_slug("spring"))))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
    for refused in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (409, &json!("SLUG_TAKEN")));
    }
}

#[tokio::test]
async fn a_deleted_links_slug_goes_to_one_new_link() {
    let server = Server::start().await;
    let mut holder = server.create_link(with_slug("spring")).await;
    for _ in 0..10 {
        let path = format!("/api/links/{}", text(&holder["id"]));
        let wanting =
            join_all((0..6).map(|_| server.send(Method::POST, "/api/links", Some(with_slug("spring")))));
        let (deleted, mut answers) = tokio::join!(server.send(Method::DELETE, &path, None), wanting);
        assert_eq!(deleted.status, 204);
        if answers.iter().all(|answer| answer.status != 201) {
            // All requests came before the deletion.
            answers.push(server.send(Method::POST, "/api/links", Some(with_slug("spring"))).await);
        }
        let made: Vec<_> = answers.into_iter().filter(|answer| answer.status == 201).collect();
        assert_eq!(made.len(), 1);
        holder = made[0].body.clone();
    }
    let edges = edges_map(&server).await;
    assert_eq!(edges.get("spring"), Some(&text(&holder["id"])));
    assert_eq!(edges, stored_map(&server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn slugs_swapped_over_two_instances_agree_with_postgres() {
    let server = Server::start().await;
    let other = Server::serve(server.engines.clone(), config(&server.engines)).await;
    let mut links = Vec::new();
    for n in 0..4 {
        links.push(server.create_link(with_slug(&format!("s{n}"))).await);
    }
    // Four links compete for five slugs, of which one is always free. The requests wait for each other's rows; many
    // more would wait too long for a connection.
    let moves = (0..60_usize).map(|n| {
        let server = if n % 2 == 0 { &server } else { &other };
        let path = format!("/api/links/{}", text(&links[n % 4]["id"]));
        let slug = format!("s{}", (n * 7 + n / 4) % 5);
        (server, path, slug)
    });
    let key = server.key.clone();
    let answers = join_all(moves.map(|(server, path, slug)| {
        let key = &key;
        async move { server.send_as(key, Method::PATCH, &path, Some(json!({"slug": slug}))).await }
    }))
    .await;
    assert!(answers.iter().any(|answer| answer.status == 200));
    for refused in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (409, &json!("SLUG_TAKEN")));
    }
    assert_eq!(edges_map(&server).await, stored_map(&server).await);
    other.stop().await;
}

#[tokio::test]
async fn two_links_cannot_swap_slugs() {
    let server = Server::start().await;
    for round in 0..5 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        let one = server.create_link(with_slug(&a)).await;
        let two = server.create_link(with_slug(&b)).await;
        let (one, two) =
            (format!("/api/links/{}", text(&one["id"])), format!("/api/links/{}", text(&two["id"])));
        let (one, two) = tokio::join!(
            server.send(Method::PATCH, &one, Some(json!({"slug": b}))),
            server.send(Method::PATCH, &two, Some(json!({"slug": a}))),
        );
        // Each slug belongs to the other link, and neither link gives its slug up.
        assert_eq!((one.status.as_u16(), two.status.as_u16()), (409, 409));
    }
    assert_eq!(edges_map(&server).await, stored_map(&server).await);
}
