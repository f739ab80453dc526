//! Kafka outages, killed processes and damaged spools: redirects continue and clicks arrive.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use ingest::spool::Spool;
use ingest::spool::record::Record;
use reqwest::Method;
use schemas::message::{Click, Message as _};
use schemas::topic;
use service::Shutdown;
use service::metrics::Metrics;
use tests::engines::isolated;
use tests::{PATIENCE, eventually};
use tokio::net::TcpListener;

use crate::edge::{
    BROWSER, Edge, SpoolDir, click_id, clicks, config, link, live, location, publish, request,
};
use crate::program::{Broker, Program};

pub(crate) async fn click_ten_times(address: SocketAddr) -> BTreeSet<String> {
    let mut answered = BTreeSet::new();
    for _ in 0..10 {
        let answer = request(address, Method::GET, "/s", &[("user-agent", BROWSER.as_bytes())]).await;
        assert_eq!(answer.status(), 302);
        assert!(answered.insert(click_id(&answer)));
    }
    answered
}

pub(crate) fn ids(clicks: &[(i32, Click)]) -> BTreeSet<String> {
    clicks.iter().map(|(_, click)| click.click_id.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn clicks_during_a_kafka_outage_arrive_afterwards() {
    let (broker, spool) = (Broker::start(&link("s", "https://a.example/")), SpoolDir::new());
    let edge = Edge::start_with(&broker.address(), "", &spool).await;
    edge.is_ready().await;
    broker.cluster.broker_down(1).unwrap();
    let answered = click_ten_times(edge.address).await;
    broker.cluster.broker_up(1).unwrap();
    let arrived = clicks(&broker.isolated(), 10).await;
    assert_eq!(ids(&arrived), answered);
    assert!(arrived.iter().all(|(_, click)| !click.again), "sent once, so not marked");
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsent_clicks_arrive_after_a_restart_marked_as_repeats() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let link = link("s", "https://a.example/");
    publish(&isolated, &[live(&link)]);
    let broker = Broker::start(&link);
    let edge = Edge::start_with(&broker.address(), "", &spool).await;
    edge.is_ready().await;
    broker.cluster.broker_down(1).unwrap();
    eventually("readyz names kafka and stays ready", async || match edge.readyz().await {
        (200, report) if report["checks"]["kafka"]["ready"] == false => Ok(()),
        other => Err(other),
    })
    .await;
    let answered = click_ten_times(edge.address).await;
    edge.stop().await;
    assert!(!spool.segments().is_empty());

    let edge = Edge::start(&isolated, &spool).await;
    let arrived = clicks(&isolated, 10).await;
    assert_eq!(ids(&arrived), answered);
    assert!(arrived.iter().all(|(_, click)| click.again));
    becomes_empty(&spool).await;
    edge.stop().await;
}

async fn becomes_empty(spool: &SpoolDir) {
    eventually("the spool is empty", async || match spool.segments() {
        segments if segments.is_empty() => Ok(()),
        segments => Err(segments),
    })
    .await;
}

/// Creates a spool like that of a killed edge, with a click for each partition.
pub(crate) fn fill_spool(spool: &SpoolDir, partitions: &[i32]) {
    let click = include_bytes!("../../../schemas/fixtures/click.v1.bare.json").trim_ascii();
    let click_id = Click::decode(click).unwrap().click_id;
    let spool = Spool::open(spool.path(), None).unwrap();
    for partition in partitions {
        let record = Record { at: 0, partition: *partition, key: click_id.as_bytes(), value: click };
        spool.append(&mut record.encode().unwrap()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_goes_to_the_partition_in_its_record() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    fill_spool(&spool, &[4, 2, 5]);
    let edge = Edge::start(&isolated, &spool).await;
    let arrived = clicks(&isolated, 3).await;
    assert_eq!(arrived.iter().map(|(partition, _)| *partition).collect::<Vec<_>>(), [2, 4, 5]);
    assert!(arrived.iter().all(|(_, click)| click.again));
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_for_a_missing_partition_goes_to_an_existing_one() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    fill_spool(&spool, &[topic::CLICKS.partitions]);
    let edge = Edge::start(&isolated, &spool).await;
    assert!(clicks(&isolated, 1).await[0].1.again);
    becomes_empty(&spool).await;
    edge.stop().await;
    assert!(spool.segments().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn answered_clicks_of_a_killed_edge_arrive_after_a_restart() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let link = link("s", "https://a.example/");
    publish(&isolated, &[live(&link)]);
    let broker = Broker::start(&link);
    let program = Program::start(Program::bare(), &broker, spool.path(), &[]).await;
    broker.cluster.broker_down(1).unwrap();
    let answered = click_ten_times(program.address).await;
    // SIGKILL, immediately after the last answer.
    program.kill();

    // A damaged record, and an incomplete one as after a kill during a write.
    let segment = spool.segments().into_iter().max().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let records: Vec<usize> =
        (0..bytes.len() - 4).filter(|begin| bytes[*begin..].starts_with(b"clk\x01")).collect();
    assert_eq!(records.len(), 10);
    bytes[usize::midpoint(records[3], records[4])] ^= 1;
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes.copy_within(records[0]..records[0] + 40, end);
    fs::write(&segment, bytes).unwrap();

    let edge = Edge::start(&isolated, &spool).await;
    let arrived = clicks(&isolated, 9).await;
    becomes_empty(&spool).await;
    edge.stop().await;
    assert_eq!(arrived.len(), 9, "all but the damaged and the incomplete one");
    assert!(ids(&arrived).is_subset(&answered));
    assert!(arrived.iter().all(|(_, click)| click.again));
    assert!(spool.segments().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_without_links_answers_and_is_not_ready() {
    let spool = SpoolDir::new();
    // Nothing listens on port 1.
    let edge = Edge::start_with("127.0.0.1:1", "", &spool).await;
    assert_eq!(edge.get("/unknown").await.status(), 404);
    let report = eventually("readyz names kafka and links", async || match edge.readyz().await {
        (503, report) if report["checks"]["kafka"]["detail"] != "not checked yet" => Ok(report),
        other => Err(other),
    })
    .await;
    assert_eq!(report["checks"]["kafka"]["ready"], false);
    assert_eq!(report["checks"]["links"]["ready"], false);
    assert_eq!(report["checks"]["spool"]["ready"], true);
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_spool_directory_stops_no_redirect_and_recovers() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    // No segment exists yet. Without the directory none can be created, as on a full disk.
    let moved = spool.path().with_extension("moved");
    fs::rename(spool.path(), &moved).unwrap();
    let dropped = edge.get("/s").await;
    assert_eq!(dropped.status(), 302);
    assert_eq!(location(&dropped), "https://a.example/", "without a click id");
    let (status, report) = edge.readyz().await;
    assert_eq!((status, &report["checks"]["spool"]["ready"]), (503, &false.into()));
    fs::rename(&moved, spool.path()).unwrap();
    edge.is_ready().await;
    let stored = edge.get("/s").await;
    let arrived = clicks(&isolated, 1).await;
    assert_eq!(ids(&arrived), [click_id(&stored)].into());
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_edge_on_the_same_spool_does_not_start() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let edge = Edge::start(&isolated, &spool).await;
    let listener = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
    let error = ingest::run(
        config(&isolated.kafka_brokers, &isolated.topic_prefix, spool.path()),
        listener().await,
        listener().await,
        Metrics::install("ingest", ingest::METRICS).unwrap(),
        Shutdown::new(PATIENCE),
    )
    .await
    .unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("HOPLINE_SPOOL_DIR") && text.contains("in use"), "{text}");
    edge.stop().await;
}
