//! What changes reaches Kafka.

use std::collections::BTreeSet;

use reqwest::Method;
use schemas::message::{LinkRecord, Message as _};
use schemas::topic;
use serde_json::{Value, json};
use tests::engines::{Isolated, isolated, topics_on};
use tests::eventually;
use tests::faults::own_kafka;
use tests::log::{Record, records};

use crate::server::{Server, config, text};

#[tokio::test]
async fn every_change_of_a_link_is_published_in_order() {
    let server = Server::start().await;
    let link = server
        .create_link(json!({"name": "a", "destination": "https://example.com", "slug": "spring"}))
        .await;
    let path = format!("/api/links/{}", text(&link["id"]));
    server.send(Method::PATCH, &path, Some(json!({"name": "b", "tags": ["x"]}))).await;
    server.send(Method::PATCH, &path, Some(json!({"name": "b"}))).await; // changes nothing
    server.send(Method::DELETE, &path, None).await;

    let told = told(&server, topic::LINKS, 3).await;
    assert!(told.iter().all(|record| record.key == text(&link["id"])));
    let revisions: Vec<Value> = told.iter().map(|record| record.json()["revision"].clone()).collect();
    assert_eq!(revisions, [1, 2, 3]);
    assert!(matches!(LinkRecord::decode(&told[2].value), Ok(LinkRecord::Deleted(_))));

    let events: Vec<Value> =
        self::told(&server, topic::LINK_EVENTS, 3).await.iter().map(Record::json).collect();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(kinds, ["link.created", "link.updated", "link.deleted"]);
    assert_eq!(events[0]["data"]["slug"], "spring");
    assert_eq!(events[0]["data"].get("total_clicks"), None, "events carry no counters");
    assert_eq!(events[1]["data"]["changed"], json!(["name", "tags"]));
    let fields: Vec<&String> = events[2]["data"].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["id", "slug", "name", "destination"]);
}

#[tokio::test]
async fn the_next_start_sends_what_is_left_in_the_outbox() {
    let mut engines = isolated().await;
    let brokers = std::mem::replace(&mut engines.kafka_brokers, "127.0.0.1:1".to_owned());
    let server = Server::start_on(engines).await;
    server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let mut engines = server.stop().await;
    engines.kafka_brokers = brokers;
    let config = config(&engines);
    let server = Server::serve(engines, config).await;
    assert_eq!(told(&server, topic::LINKS, 1).await.len(), 1);
}

#[tokio::test]
async fn two_instances_publish_each_change_once() {
    let one = Server::start().await;
    let other = Server::serve(one.engines.clone(), config(&one.engines)).await;
    for n in 0..20 {
        let server = if n % 2 == 0 { &one } else { &other };
        let body = json!({"name": "a", "destination": "https://example.com"});
        assert_eq!(server.send_as(&one.key, Method::POST, "/api/links", Some(body)).await.status, 201);
    }
    assert_eq!(told(&one, topic::LINKS, 20).await.len(), 20);
    // The one that publishes goes; the other one takes over.
    let (key, engines) = (one.key.clone(), one.stop().await);
    let body = json!({"name": "b", "destination": "https://example.com"});
    assert_eq!(other.send_as(&key, Method::POST, "/api/links", Some(body)).await.status, 201);
    assert_eq!(told(&other, topic::LINKS, 21).await.len(), 21);
    drop(engines);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_publisher_keeps_its_lock_while_kafka_hangs() {
    let kafka = own_kafka().await;
    let topics = topics_on(kafka.url()).await;
    let Isolated { kafka_brokers, topic_prefix, .. } = topics;
    let server = Server::start_on(Isolated { kafka_brokers, topic_prefix, ..isolated().await }).await;
    let link = json!({"name": "a", "destination": "https://example.com"});
    server.create_link(link.clone()).await;
    told(&server, topic::LINKS, 1).await;
    let mut postgres = server.engines.postgres().await;
    let publisher = "SELECT a.pid, a.state_change::text FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                     WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database()
                       AND (l.classid::bigint << 32 | l.objid::bigint) = x'6f7574626f78'::bigint";
    let (holder, _): (i32, String) = sqlx::query_as(publisher).fetch_one(&mut postgres).await.unwrap();

    kafka.pause().await.unwrap();
    server.create_link(link).await;
    // It asks again and again, and nobody else has the lock.
    let mut asked = BTreeSet::new();
    eventually("the session is kept awake", async || {
        let (pid, at): (i32, String) = sqlx::query_as(publisher).fetch_one(&mut postgres).await.unwrap();
        assert_eq!(pid, holder);
        asked.insert(at);
        if asked.len() > 3 { Ok(()) } else { Err(asked.len()) }
    })
    .await;
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox").fetch_one(&mut postgres).await.unwrap();
    assert!(left > 0, "Kafka hangs");
    kafka.resume().await.unwrap();
    told(&server, topic::LINKS, 2).await;
    let (pid, _): (i32, String) = sqlx::query_as(publisher).fetch_one(&mut postgres).await.unwrap();
    assert_eq!(pid, holder);
    server.stop().await;
}

/// Waits until the topic has `count` records and the outbox is empty.
async fn told(server: &Server, topic: topic::Topic, count: usize) -> Vec<Record> {
    eventually("the changes are told", async || {
        let waiting = server.outbox().await;
        let records = records(&server.engines, topic);
        if waiting == 0 && records.len() >= count { Ok(records) } else { Err((waiting, records.len())) }
    })
    .await
}
