//! Outages and kills of Kafka under load, and outages of everything else. `./dev soak kafka-outage` is the long form.

use std::time::Duration;

use tests::deployment::Deployment;
use tests::eventually;
use tests::faults::{KafkaKills, KafkaOutage, OwnEngines, kafka_kills, kafka_outage, progress};

use crate::traffic::Traffic;

#[tokio::test(flavor = "multi_thread")]
async fn every_click_is_answered_and_arrives_when_kafka_is_stopped_for_a_minute() {
    let down = Duration::from_secs(60);
    let outage = kafka_outage(KafkaOutage { down, connections: 8, rate: 200 }).await;
    progress(&format!("Kafka stopped for {down:?}: {outage}"));
    outage.tally.is_exact();
    assert!(outage.tally.answered > 60 * 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_click_is_answered_and_arrives_when_kafka_is_killed() {
    let tally = kafka_kills(KafkaKills { kills: 2, connections: 8, rate: 300 }).await;
    progress(&format!("Kafka killed: {tally}"));
    tally.is_exact();
}

#[tokio::test(flavor = "multi_thread")]
async fn known_links_redirect_with_everything_else_stopped() {
    let own = OwnEngines::start().await;
    let engines = own.isolated().await;
    let OwnEngines { kafka, clickhouse, postgres } = &own;
    let deployment = Deployment::start_on(engines, &[("HOPLINE_SNAPSHOT_SECONDS", "1")]).await;
    let mut traffic = Traffic::on_links(&deployment, 3, 20).await;
    for _ in 0..30 {
        assert!(traffic.click(&deployment).await);
    }
    eventually("the links are in the snapshot", async || {
        let snapshot = deployment.spool().join("links.snapshot");
        let bytes = std::fs::read(&snapshot).map_err(|error| error.to_string())?;
        let has = |slug: &str| bytes.windows(slug.len()).any(|window| window == slug.as_bytes());
        if traffic.slugs().all(has) { Ok(()) } else { Err(format!("{} bytes", bytes.len())) }
    })
    .await;

    for service in [&deployment.processor, &deployment.api, &deployment.dispatcher] {
        service.kill().await;
    }
    tokio::join!(kafka.stop(), clickhouse.stop(), postgres.stop());
    for _ in 0..30 {
        assert!(traffic.click(&deployment).await, "a known link redirects");
    }
    deployment.ingest.kill().await;
    // The edge is ready with its snapshot, so the first request finds its link.
    deployment.ingest.start().await.unwrap();
    for _ in 0..30 {
        assert!(traffic.click(&deployment).await, "a known link redirects");
    }

    let (kafka_up, clickhouse_up, postgres_up) =
        tokio::join!(kafka.start(), clickhouse.start(), postgres.start());
    for up in [kafka_up, clickhouse_up, postgres_up] {
        up.unwrap();
    }
    for service in deployment.services() {
        service.start().await.unwrap();
    }
    traffic.is_counted(&deployment).await;
    let later = deployment.create_link().await;
    deployment.edge_knows(later["slug"].as_str().unwrap()).await;
}
