//! Topic creation and the probe, against a real broker.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use devstack::{Options, Server};
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use service::kafka::{Context, EnsuredTopic, KafkaConfig, TopicSpec, ensure_topics, topic_ids, watch};
use service::{Check, Health, Shutdown};
use tests::{ANSWER, eventually};
use tokio::task::spawn_blocking;

const CLICKS: TopicSpec<'_> = TopicSpec {
    name: "clicks",
    partitions: 3,
    config: &[("retention.ms", "60000"), ("max.message.bytes", "900000")],
};

async fn broker() -> (Server, KafkaConfig) {
    let server = devstack::kafka::start(Options::throw_away("kafka").unwrap()).await.unwrap();
    let config = KafkaConfig::new(server.url(), "test.");
    (server, config)
}

/// The outcome for a topic that was not changed.
fn unchanged() -> EnsuredTopic {
    EnsuredTopic {
        topic: "test.clicks".to_owned(),
        created: false,
        altered: Vec::new(),
        differing_partitions: None,
        missing_replicas: None,
    }
}

async fn becomes(check: &Check, ready: bool) {
    eventually("the check changes", async || match check.is_ready() {
        is if is == ready => Ok(()),
        is => Err(is),
    })
    .await;
}

/// Waits until the report contains a text.
async fn reports(health: &Health, expected: &str) {
    eventually(expected, async || {
        let report = serde_json::to_string(&health.report()).unwrap();
        if report.contains(expected) { Ok(()) } else { Err(report) }
    })
    .await;
}

#[tokio::test]
async fn topics_are_created_once_and_then_updated() {
    let (_server, config) = broker().await;
    let created = ensure_topics(&config, &[CLICKS]).await.unwrap();
    assert_eq!(created, [EnsuredTopic { created: true, ..unchanged() }]);
    assert_eq!(ensure_topics(&config, &[CLICKS]).await.unwrap(), [unchanged()]);

    // An operator changes a specified setting and adds another one.
    let admin: AdminClient<Context> =
        config.client_config("operator").create_with_context(Context::default()).unwrap();
    let change = AlterConfig::new(ResourceSpecifier::Topic("test.clicks"))
        .set("retention.ms", "1")
        .set("segment.ms", "777000");
    admin.alter_configs([&change], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let own = async || {
        let topic = ResourceSpecifier::Topic("test.clicks");
        let described = admin.describe_configs([&topic], &AdminOptions::new()).await.unwrap();
        described[0].as_ref().unwrap().get("segment.ms").unwrap().value.clone()
    };
    // A broker applies a change some time after it has confirmed it.
    eventually("the change is applied", async || match own().await {
        Some(own) if own == "777000" => Ok(()),
        other => Err(other),
    })
    .await;
    let repaired = ensure_topics(&config, &[CLICKS]).await.unwrap();
    let altered = vec![
        ("retention.ms".to_owned(), "1".to_owned(), "60000".to_owned()),
        ("max.message.bytes".to_owned(), repaired[0].altered[1].1.clone(), "900000".to_owned()),
    ];
    assert_eq!(repaired, [EnsuredTopic { altered, ..unchanged() }]);
    assert_eq!(own().await.as_deref(), Some("777000"), "the operator's own setting was lost");

    let more = TopicSpec { partitions: 6, ..CLICKS };
    let differing = ensure_topics(&config, &[more]).await.unwrap();
    assert_eq!(differing, [EnsuredTopic { differing_partitions: Some(3), ..unchanged() }]);
}

#[tokio::test]
async fn a_recreated_topic_has_a_new_id() {
    let (_server, config) = broker().await;
    let client: Arc<BaseConsumer> = Arc::new(config.client_config("ids").create().unwrap());
    let id = async || {
        let client = Arc::clone(&client);
        let ask = move || topic_ids(client.client(), &["test.clicks", "test.none"], ANSWER).unwrap();
        let ids = spawn_blocking(ask).await.unwrap();
        assert!(!ids.contains_key("test.none"));
        ids.get("test.clicks").copied()
    };
    assert_eq!(id().await, None);
    ensure_topics(&config, &[CLICKS]).await.unwrap();
    // The broker lists a new topic some time after it has confirmed it.
    let known = async || eventually("the topic has an id", async || id().await.ok_or("none")).await;
    let first = known().await;
    assert_eq!(id().await, Some(first));

    let admin: AdminClient<Context> =
        config.client_config("operator").create_with_context(Context::default()).unwrap();
    admin.delete_topics(&["test.clicks"], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    // The broker lists the topic until it has processed the deletion.
    eventually("the topic is created again", async || match ensure_topics(&config, &[CLICKS]).await {
        Ok(ensured) if !ensured[0].created => Err(ensured),
        _ => Ok(()),
    })
    .await;
    let second = known().await;
    assert!(second != first && !second.is_nil(), "{second}");
}

#[tokio::test]
async fn the_probe_follows_topics_and_brokers() {
    let (server, config) = broker().await;
    let shutdown = Shutdown::new(Duration::ZERO);
    let health = Health::new(&shutdown);
    let check = health.check("kafka");
    let watching = tokio::spawn({
        let (config, check, shutdown) = (config.clone(), check.clone(), shutdown.clone());
        async move { watch(&config, vec!["test.clicks".to_owned()], check, shutdown).await }
    });
    reports(&health, "missing topics: test.clicks").await;

    ensure_topics(&config, &[CLICKS]).await.unwrap();
    becomes(&check, true).await;
    // The topic has one replica, and the broker's settings flush it.
    assert_eq!(serde_json::to_value(health.report()).unwrap()["checks"]["kafka"]["detail"], "ok");
    server.pause().await.unwrap();
    becomes(&check, false).await;
    server.resume().await.unwrap();
    becomes(&check, true).await;
    server.kill().await;
    becomes(&check, false).await;
    server.start().await.unwrap();
    becomes(&check, true).await;

    shutdown.request();
    watching.await.unwrap().unwrap();
}

#[tokio::test]
async fn topics_are_replicated_and_the_probe_reports_missing_replicas() {
    let brokers = devstack::kafka::start_cluster(3, Options::throw_away).await.unwrap();
    let addresses: Vec<&str> = brokers.iter().map(Server::url).collect();
    let mut config = KafkaConfig::new(addresses.join(","), "test.");
    // Like a topic of a deployment that has grown.
    config.topic_replicas = Some(1);
    let former = TopicSpec { name: "former", ..CLICKS };
    ensure_topics(&config, &[former]).await.unwrap();
    config.topic_replicas = Some(3);
    let ensured = ensure_topics(&config, &[CLICKS, former]).await.unwrap();
    assert!(ensured[0].created && ensured[1].missing_replicas == Some(1), "{ensured:?}");
    assert_eq!(ensured[1].altered, [], "two in-sync replicas are impossible with one replica");
    let admin: AdminClient<Context> =
        config.client_config("operator").create_with_context(Context::default()).unwrap();
    let described = admin
        .describe_configs([&ResourceSpecifier::Topic("test.clicks")], &AdminOptions::new())
        .await
        .unwrap();
    let in_sync = described[0].as_ref().unwrap().get("min.insync.replicas").unwrap().value.clone();
    assert_eq!(in_sync.as_deref(), Some("2"));

    let shutdown = Shutdown::new(Duration::ZERO);
    let health = Health::new(&shutdown);
    let check = health.check("kafka");
    let watching = tokio::spawn({
        let (config, check, shutdown) = (config.clone(), check.clone(), shutdown.clone());
        let topics = ["test.clicks", "test.former"].map(str::to_owned).to_vec();
        async move { watch(&config, topics, check, shutdown).await }
    });
    reports(&health, "ok, but topic test.former has 1 of 3 replicas").await;
    brokers[2].kill().await;
    reports(&health, "broker 3 lacks records").await;
    assert!(check.is_ready());

    shutdown.request();
    watching.await.unwrap().unwrap();
}
