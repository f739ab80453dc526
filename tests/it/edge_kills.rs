//! kill -9 of the edge under load: every answered click is on the topic. `./dev soak edge-kills` is the long form.

use tests::edge::Edge;
use tests::engines::topics;
use tests::faults::{EdgeKills, edge_kills, own_kafka, progress};
use tests::links;
use tests::load::{Load, Log};
use tests::tally::Tally;
use tests::{eventually, readyz};

#[tokio::test(flavor = "multi_thread")]
async fn no_answered_click_is_missing_when_the_edge_is_killed() {
    let tally = edge_kills(EdgeKills { kills: 3, connections: 8 }).await;
    progress(&format!("edge killed: {tally}"));
    tally.is_exact();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answered_click_is_missing_when_one_of_two_edges_is_killed() {
    let engines = topics().await;
    let slugs = links::publish(&engines, 10);
    let (left, right) = tokio::join!(Edge::start(&engines, &[]), Edge::start(&engines, &[]));
    let [left_load, right_load] = [&left, &right].map(|edge| Load::start(edge.address, &slugs, 4, None));
    for _ in 0..2 {
        left_load.answers(200).await;
        left.server.kill().await;
        // The other edge is not affected.
        right_load.answers(200).await;
        left.server.start().await.unwrap();
    }
    left_load.answers(200).await;
    let mut log = Log::default();
    let undisturbed = right_load.stop().await;
    undisturbed.is_complete();
    log.join(undisturbed);
    log.join(left_load.stop().await);
    for edge in [&left, &right] {
        edge.ships_everything().await;
        edge.stop().await;
    }
    let tally = Tally::of(&engines, &log);
    progress(&format!("one of two edges killed: {tally}"));
    tally.is_exact();
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_load_loses_no_answered_click() {
    let kafka = own_kafka().await;
    let engines = tests::engines::topics_on(kafka.url()).await;
    let slugs = links::publish(&engines, 10);
    let edge = Edge::start(&engines, &[]).await;
    let mut log = Log::default();

    // With Kafka, and during an outage of Kafka.
    for kafka_is_down in [false, true] {
        let load = Load::start(edge.address, &slugs, 8, None);
        load.answers(500).await;
        // An edge that has not reached Kafka yet ships nothing before it ends.
        eventually("the edge reaches Kafka", async || match readyz(edge.server.url()).await {
            (_, report) if report["checks"]["kafka"]["ready"] == true => Ok(()),
            (_, report) => Err(report),
        })
        .await;
        if kafka_is_down {
            kafka.stop().await;
            load.answers(500).await;
        }
        // Under load. Asserts exit code 0.
        edge.stop().await;
        log.join(load.stop().await);
        if kafka_is_down {
            kafka.start().await.unwrap();
        }
        let left = edge.spooled_click_ids();
        assert_eq!(left.is_empty(), !kafka_is_down, "{} clicks are in the spool", left.len());
        let mut tally = Tally::of(&engines, &log);
        tally.missing.retain(|click_id| !left.contains(&**click_id));
        progress(&format!("stopped by SIGTERM, {} clicks in the spool: {tally}", left.len()));
        tally.is_exact();
        edge.server.start().await.unwrap();
    }
    edge.ships_everything().await;
    edge.stop().await;
    let tally = Tally::of(&engines, &log);
    progress(&format!("shipped by the next start: {tally}"));
    tally.is_exact();
}
