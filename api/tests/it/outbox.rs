//! Publication of changes to Kafka.

use std::collections::BTreeSet;

use reqwest::Method;
use schemas::message::{LinkRecord, Message as _};
use schemas::topic;
use serde_json::{Value, json};
use tests::engines::{Isolated, isolated, topics_on};
use tests::faults::own_kafka;
use tests::log::{Record, records};
use tests::{eventually, find_metric, metric, readyz};

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

    let links = published(&server, topic::LINKS, 3).await;
    assert!(links.iter().all(|record| record.key == text(&link["id"])));
    let revisions: Vec<Value> = links.iter().map(|record| record.json()["revision"].clone()).collect();
    assert_eq!(revisions, [1, 2, 3]);
    assert!(matches!(LinkRecord::decode(&links[2].value), Ok(LinkRecord::Deleted(_))));

    let events: Vec<Value> =
        published(&server, topic::LINK_EVENTS, 3).await.iter().map(Record::json).collect();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(kinds, ["link.created", "link.updated", "link.deleted"]);
    assert_eq!(events[0]["data"]["slug"], "spring");
    assert_eq!(events[0]["data"].get("total_clicks"), None, "events carry no counters");
    assert_eq!(events[1]["data"]["changed"], json!(["name", "tags"]));
    let fields: Vec<&String> = events[2]["data"].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["id", "slug", "name", "destination"]);
}

#[tokio::test]
async fn the_next_start_publishes_the_outbox() {
    let mut engines = isolated().await;
    let brokers = std::mem::replace(&mut engines.kafka_brokers, "127.0.0.1:1".to_owned());
    let server = Server::start_on(engines).await;
    server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let mut engines = server.stop().await;
    engines.kafka_brokers = brokers;
    let config = config(&engines);
    let server = Server::serve(engines, config).await;
    assert_eq!(published(&server, topic::LINKS, 1).await.len(), 1);
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
    assert_eq!(published(&one, topic::LINKS, 20).await.len(), 20);
    // The first instance, which publishes, stops; the other one takes over.
    let (key, engines) = (one.key.clone(), one.stop().await);
    let body = json!({"name": "b", "destination": "https://example.com"});
    assert_eq!(other.send_as(&key, Method::POST, "/api/links", Some(body)).await.status, 201);
    assert_eq!(published(&other, topic::LINKS, 21).await.len(), 21);
    drop(engines);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_kafka_is_measured_and_the_publisher_keeps_its_lock() {
    let kafka = own_kafka().await;
    let topics = topics_on(kafka.url()).await;
    let Isolated { kafka_brokers, topic_prefix, .. } = topics;
    let server = Server::start_on(Isolated { kafka_brokers, topic_prefix, ..isolated().await }).await;
    let link = json!({"name": "a", "destination": "https://example.com"});
    server.create_link(link.clone()).await;
    published(&server, topic::LINKS, 1).await;
    let mut postgres = server.engines.postgres().await;
    let publisher = "SELECT a.pid, a.state_change::text FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                     WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database()
                       AND (l.classid::bigint << 32 | l.objid::bigint) = x'6f7574626f78'::bigint";
    let (holder, _): (i32, String) = sqlx::query_as(publisher).fetch_one(&mut postgres).await.unwrap();

    kafka.pause().await.unwrap();
    server.create_link(link.clone()).await;
    // The publisher keeps sending statements, and its session keeps the lock.
    let mut seen = BTreeSet::new();
    eventually("the session stays active", async || {
        let (pid, at): (i32, String) = sqlx::query_as(publisher).fetch_one(&mut postgres).await.unwrap();
        assert_eq!(pid, holder);
        seen.insert(at);
        if seen.len() > 3 { Ok(()) } else { Err(seen.len()) }
    })
    .await;
    assert!(server.outbox().await > 0, "Kafka hangs");
    kafka.resume().await.unwrap();
    published(&server, topic::LINKS, 2).await;
    let (pid, _): (i32, String) = sqlx::query_as(publisher).fetch_one(&mut postgres).await.unwrap();
    assert_eq!(pid, holder);

    let measured = async || {
        let messages = find_metric(&server.operations, "hopline_outbox_messages").await;
        (messages, find_metric(&server.operations, "hopline_outbox_oldest_seconds").await)
    };
    kafka.pause().await.unwrap();
    server.create_link(link).await;
    // The oldest is older than the time between two measurements, so a later one has found it, too.
    eventually("the outbox is measured", async || match measured().await {
        (Some(2.0), Some(6.0..)) => Ok(()),
        other => Err(other),
    })
    .await;
    eventually("the instance reports Kafka and stays ready", async || {
        let (status, report) = readyz(&server.operations).await;
        if status == 200 && report["checks"]["kafka"]["ready"] == false {
            Ok(())
        } else {
            Err((status, report))
        }
    })
    .await;
    assert_eq!(metric(&server.operations, r#"hopline_check_ready{check="kafka"}"#).await, 0.0);
    kafka.resume().await.unwrap();
    published(&server, topic::LINKS, 3).await;
    eventually("the outbox is measured as empty", async || match measured().await {
        (Some(0.0), Some(0.0)) => Ok(()),
        other => Err(other),
    })
    .await;
    server.stop().await;
}

/// Waits until the topic has `count` records and the outbox is empty.
async fn published(server: &Server, topic: topic::Topic, count: usize) -> Vec<Record> {
    eventually("the changes are published", async || {
        let waiting = server.outbox().await;
        let records = records(&server.engines, topic);
        if waiting == 0 && records.len() >= count { Ok(records) } else { Err((waiting, records.len())) }
    })
    .await
}
