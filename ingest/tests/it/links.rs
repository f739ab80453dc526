//! What the topic `links` does to redirects.

use schemas::{message::Link, topic};
use tests::engines::isolated;

use crate::edge::{Edge, SpoolDir, deleted, link, live, location, publish, publish_bytes};

#[tokio::test(flavor = "multi_thread")]
async fn a_link_on_the_topic_redirects_and_a_deleted_one_does_not() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let before = link("before", "https://a.example/before");
    let gone = link("gone", "https://a.example/gone");
    publish(&isolated, &[live(&before), live(&gone), deleted(&gone, 2)]);

    let edge = Edge::start(&isolated, &spool).await;
    // Ready means caught up: no waiting from here on.
    assert_eq!(edge.get("/before").await.status(), 302);
    assert_eq!(edge.get("/gone").await.status(), 404);

    let after = link("after", "https://a.example/after");
    publish(&isolated, &[live(&after), deleted(&before, 2)]);
    edge.answers("/after", 302).await;
    edge.answers("/before", 404).await;
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_revision_is_ignored() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let newer = Link { revision: 2, append_click_id: false, ..link("s", "https://a.example/new") };
    let older = Link { revision: 1, destination: "https://a.example/old".to_owned(), ..newer.clone() };
    publish(&isolated, &[live(&newer), live(&older)]);
    let edge = Edge::start(&isolated, &spool).await;
    assert_eq!(location(&edge.get("/s").await), "https://a.example/new");
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slug_moves_to_another_link_in_either_order() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let plain = |slug: &str, destination: &str| Link { append_click_id: false, ..link(slug, destination) };
    let (first, second) = (plain("early", "https://a.example/1"), plain("early", "https://a.example/2"));
    let (third, fourth) = (plain("late", "https://a.example/3"), plain("late", "https://a.example/4"));
    let renamed = Link { slug: "renamed".to_owned(), revision: 2, ..third.clone() };
    publish(
        &isolated,
        &[live(&first), deleted(&first, 2), live(&second), live(&third), live(&fourth), live(&renamed)],
    );
    let edge = Edge::start(&isolated, &spool).await;
    assert_eq!(location(&edge.get("/early").await), "https://a.example/2");
    assert_eq!(location(&edge.get("/late").await), "https://a.example/4");
    assert_eq!(location(&edge.get("/renamed").await), "https://a.example/3");
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_on_the_topic_stops_nothing() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let topic = isolated.topic(topic::LINKS);
    publish_bytes(&isolated.kafka(), &topic, "poison", b"\xff\xfe");
    publish_bytes(&isolated.kafka(), &topic, "later", br#"{"v":99}"#);
    publish_bytes(&isolated.kafka(), &topic, "edge_token:edg_1", b"{}");
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    assert_eq!(edge.get("/s").await.status(), 302);
    edge.stop().await;
}
