//! Edges that start from a snapshot while Kafka is down.

use std::fs;

use ingest::Config;
use rdkafka::mocking::MockCluster;
use schemas::topic;
use tests::engines::isolated;
use tests::eventually;

use crate::edge::{
    Edge, SpoolDir, click_id, clicks, config, deleted, link, live, location, publish, publish_to,
};
use crate::program::Broker;

/// Returns the default path of the snapshot.
fn snapshot(spool: &SpoolDir) -> std::path::PathBuf {
    spool.path().join("links.snapshot")
}

/// Runs an edge until it has written a snapshot.
async fn write_snapshot(brokers: &str, prefix: &str, spool: &SpoolDir) {
    let edge = Edge::start_with(brokers, prefix, spool).await;
    edge.is_ready().await;
    edge.stop().await;
    assert!(snapshot(spool).exists());
    assert!(!spool.path().join("links.snapshot.partial").exists());
}

/// Waits until the detail of check `links` contains `text`, and returns the check.
async fn links_check(edge: &Edge, text: &str) -> serde_json::Value {
    eventually(&format!("check links contains {text}"), async || {
        let (_, report) = edge.readyz().await;
        let links = report["checks"]["links"].clone();
        if links["detail"].as_str().unwrap().contains(text) { Ok(links) } else { Err(report) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_without_kafka_serves_its_snapshot_and_stores_clicks() {
    let (broker, spool) = (Broker::start(&link("s", "https://a.example/")), SpoolDir::new());
    write_snapshot(&broker.address(), "", &spool).await;
    broker.cluster.broker_down(1).unwrap();

    let edge = Edge::start_with(&broker.address(), "", &spool).await;
    // Without waiting: the first request finds the link.
    let answer = edge.get("/s").await;
    assert_eq!(answer.status(), 302);
    let click_id = click_id(&answer);
    let links = links_check(&edge, "from a snapshot of ").await;
    assert_eq!(links["ready"], true);
    eventually("readyz names kafka", async || match edge.readyz().await {
        (200, report) if report["checks"]["kafka"]["detail"] != "not checked yet" => {
            assert_eq!(report["checks"]["kafka"]["ready"], false);
            Ok(())
        }
        other => Err(other),
    })
    .await;

    broker.cluster.broker_up(1).unwrap();
    assert_eq!(links_check(&edge, "ok").await["detail"], "ok");
    let arrived = clicks(&broker.isolated(), 1).await;
    assert_eq!(arrived[0].1.click_id, click_id);
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_deleted_while_the_edge_was_stopped_is_removed() {
    let (gone, spool) = (link("gone", "https://a.example/gone"), SpoolDir::new());
    let kept = link("kept", "https://a.example/kept");
    let broker = Broker::start(&gone);
    publish_to(&broker.client(), topic::LINKS.name, &[live(&kept)]);
    write_snapshot(&broker.address(), "", &spool).await;

    publish_to(
        &broker.client(),
        topic::LINKS.name,
        &[deleted(&gone, 2), live(&link("new", "https://a.example/"))],
    );
    broker.cluster.broker_down(1).unwrap();
    let edge = Edge::start_with(&broker.address(), "", &spool).await;
    assert_eq!(edge.get("/gone").await.status(), 302, "the deletion has not been read");
    assert_eq!(edge.get("/kept").await.status(), 302);
    broker.cluster.broker_up(1).unwrap();
    edge.answers("/gone", 404).await;
    // All links change in one step.
    assert_eq!(edge.get("/kept").await.status(), 302);
    assert_eq!(edge.get("/new").await.status(), 302);
    edge.is_ready().await;
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_in_the_snapshot_before_the_edge_stops() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("early", "https://a.example/"))]);
    let often = Config {
        snapshot_interval: std::time::Duration::from_millis(10),
        ..config(&isolated.kafka_brokers, &isolated.topic_prefix, spool.path())
    };
    let edge = Edge::start_as(often).await;
    edge.is_ready().await;
    publish(&isolated, &[live(&link("late", "https://a.example/"))]);
    eventually("the snapshot has the change", async || {
        let bytes = fs::read(snapshot(&spool)).unwrap_or_default();
        let has = |slug: &[u8]| bytes.windows(slug.len()).any(|window| window == slug);
        if has(b"early") && has(b"late") { Ok(()) } else { Err(bytes.len()) }
    })
    .await;
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_snapshot_is_ignored() {
    let isolated = isolated().await;
    let known = link("s", "https://a.example/");
    publish(&isolated, &[live(&known)]);
    let written = SpoolDir::new();
    write_snapshot(&isolated.kafka_brokers, &isolated.topic_prefix, &written).await;
    let good = fs::read(snapshot(&written)).unwrap();

    let mut corrupt = good.clone();
    corrupt[good.len() / 2] ^= 1;
    let mut other_format = good.clone();
    other_format[8] = 99;
    let half = good[..good.len() / 2].to_vec();
    for (fault, bytes, prefix) in [
        ("corrupt", corrupt, isolated.topic_prefix.as_str()),
        ("half written", half, &isolated.topic_prefix),
        ("of another format", other_format, &isolated.topic_prefix),
        ("something else", b"{}".to_vec(), &isolated.topic_prefix),
        ("empty", Vec::new(), &isolated.topic_prefix),
        ("of another topic", good.clone(), "elsewhere."),
    ] {
        let spool = SpoolDir::new();
        fs::create_dir_all(spool.path()).unwrap();
        fs::write(snapshot(&spool), bytes).unwrap();
        // Nothing listens on port 1, so links can only come from the snapshot.
        let edge = Edge::start_with("127.0.0.1:1", prefix, &spool).await;
        assert_eq!(edge.get("/s").await.status(), 404, "{fault}");
        let (_, report) = edge.readyz().await;
        assert_eq!(report["checks"]["links"]["ready"], false, "{fault}");
        edge.stop().await;
    }
    // The valid snapshot is served, so the others were ignored for their faults.
    let edge = Edge::start_with("127.0.0.1:1", &isolated.topic_prefix, &written).await;
    assert_eq!(edge.get("/s").await.status(), 302);
    edge.stop().await;

    // With Kafka, a corrupt snapshot does no harm.
    let spool = SpoolDir::new();
    fs::create_dir_all(spool.path()).unwrap();
    fs::write(snapshot(&spool), b"hoplinks\x01").unwrap();
    let edge = Edge::start(&isolated, &spool).await;
    assert_eq!(location(&edge.get("/s").await).split('?').next(), Some("https://a.example/"));
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_another_cluster_is_not_served() {
    let spool = SpoolDir::new();
    let isolated = isolated().await;
    publish(&isolated, &[live(&link("theirs", "https://a.example/"))]);
    write_snapshot(&isolated.kafka_brokers, &isolated.topic_prefix, &spool).await;

    // The same topic in another cluster. It is empty, so a snapshot of the same cluster would still be served.
    let cluster = MockCluster::new(1).unwrap();
    for topic in [topic::LINKS, topic::CLICKS] {
        cluster.create_topic(&isolated.topic(topic), topic.partitions, 1).unwrap();
    }
    let edge = Edge::start_with(&cluster.bootstrap_servers(), &isolated.topic_prefix, &spool).await;
    edge.answers("/theirs", 404).await;
    edge.is_ready().await;
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_topic_removes_no_link() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    write_snapshot(&isolated.kafka_brokers, &isolated.topic_prefix, &spool).await;
    let bytes = fs::read(snapshot(&spool)).unwrap();

    isolated.recreate_topic(topic::LINKS).await;

    let edge = Edge::start_with(&isolated.kafka_brokers, &isolated.topic_prefix, &spool).await;
    let links = links_check(&edge, "topic links is empty").await;
    assert_eq!(links["ready"], false);
    assert_eq!(edge.get("/s").await.status(), 302);
    edge.stop().await;
    assert_eq!(fs::read(snapshot(&spool)).unwrap(), bytes, "the snapshot is not overwritten");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_never_had_a_link_is_ready_after_a_restart() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    write_snapshot(&isolated.kafka_brokers, &isolated.topic_prefix, &spool).await;

    let edge = Edge::start_with(&isolated.kafka_brokers, &isolated.topic_prefix, &spool).await;
    // Until the topic has been read, the snapshot is served and its age reported.
    let links = links_check(&edge, "ok").await;
    assert_eq!(links["ready"], true);
    edge.stop().await;
}
