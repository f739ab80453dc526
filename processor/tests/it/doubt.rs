//! ClickHouse does not answer or is stopped.

use tests::engines::{Isolated, isolated};
use tests::eventually;
use tokio::net::TcpListener;

use crate::clicks::{Edge, SOON, counted_exactly};
use crate::faulty_proxy::{Fault, FaultyProxy, behind};
use crate::processor::{Processor, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_without_an_answer_is_read_back() {
    for fault in [Fault::SwallowAnswer, Fault::CutRequest] {
        let isolated = isolated().await;
        let edge = Edge::new(&isolated);
        edge.send_many("before", 120).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = FaultyProxy::start(listener, &isolated, fault, 10);
        let processor = Processor::start_with(config(&proxy.before(&isolated))).await;
        counted_exactly(&isolated, 120).await;
        edge.send_many("after", 120).await;
        counted_exactly(&isolated, 240).await;
        eventually("all inserts that were to be harmed", SOON, async || {
            edge.send_many(&uuid::Uuid::now_v7().to_string(), 6).await;
            if proxy.left() == 0 { Ok(()) } else { Err(proxy.left()) }
        })
        .await;
        let sent = tests::log::records(&isolated, schemas::topic::CLICKS).len();
        counted_exactly(&isolated, sent).await;
        let resolution = if fault == Fault::SwallowAnswer { "stored" } else { "not_stored" };
        let line = format!("hopline_processor_doubtful_inserts_total{{resolution=\"{resolution}\"}}");
        eventually(&line, SOON, async || {
            let metrics = processor.metrics().await;
            if metrics.contains(&line) { Ok(()) } else { Err(metrics) }
        })
        .await;
        processor.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_processor_waits_for_clickhouse_and_says_so() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    edge.send_many("early", 60).await;
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let processor = Processor::start_with(config(&behind(&isolated, address))).await;
    eventually("not ready because of ClickHouse alone", SOON, async || match processor.readiness().await {
        (503, report)
            if report["checks"]["clickhouse"]["ready"] == false
                && report["checks"]["clickhouse"]["detail"] != "not checked yet"
                && report["checks"]["kafka"]["ready"] == true =>
        {
            Ok(())
        }
        other => Err(other),
    })
    .await;

    let proxy =
        FaultyProxy::start(TcpListener::bind(address).await.unwrap(), &isolated, Fault::CutRequest, 0);
    assert_eq!(proxy.left(), 0);
    counted_exactly(&isolated, 60).await;
    eventually("ready", SOON, async || match processor.readiness().await {
        (200, _) => Ok(()),
        other => Err(other),
    })
    .await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_larger_than_memory_waits_in_kafka() {
    let isolated = isolated().await;
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let edge = Edge::new(&isolated);
    let backlog = 60_000;
    edge.send_many("backlog", backlog).await;
    let processor = Processor::start_with(config(&behind(&isolated, address))).await;
    eventually("every partition is paused", SOON, async || {
        let metrics = processor.metrics().await;
        let pauses = metrics.lines().find_map(|line| line.strip_prefix("hopline_processor_pauses_total "));
        if pauses == Some("6") { Ok(()) } else { Err(pauses.map(str::to_owned)) }
    })
    .await;
    let _proxy =
        FaultyProxy::start(TcpListener::bind(address).await.unwrap(), &isolated, Fault::CutRequest, 0);
    counted_exactly(&isolated, backlog).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_processor_stops_in_time_while_clickhouse_is_down() {
    let isolated = isolated().await;
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    Edge::new(&isolated).send_many("early", 6).await;
    let processor = Processor::start_with(config(&behind(&isolated, address))).await;
    eventually("partitions are being taken over", SOON, async || {
        let (_, report) = processor.readiness().await;
        let detail = report["checks"]["partitions"]["detail"].as_str().unwrap_or_default().to_owned();
        if detail.starts_with("taking partitions") { Ok(()) } else { Err(detail) }
    })
    .await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_processor_starts_and_stops_without_kafka() {
    let isolated = isolated().await;
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kafka_brokers = reserved.local_addr().unwrap().to_string();
    drop(reserved);
    let processor = Processor::start(&Isolated { kafka_brokers, ..isolated }).await;
    eventually("not ready because of Kafka alone", SOON, async || match processor.readiness().await {
        (503, report)
            if report["checks"]["kafka"]["ready"] == false
                && report["checks"]["kafka"]["detail"] != "not checked yet"
                && report["checks"]["clickhouse"]["ready"] == true =>
        {
            Ok(())
        }
        other => Err(other),
    })
    .await;
    processor.stop().await;
}
