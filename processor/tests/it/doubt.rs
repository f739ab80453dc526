//! ClickHouse does not answer or is stopped.

use tests::engines::{Isolated, isolated};
use tests::proxy::{CLICKS, Moment, Proxy};
use tests::{eventually, find_metric, free_address, metric};
use tokio::net::TcpListener;

use crate::clicks::{Edge, counted_exactly};
use crate::processor::{Processor, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_without_an_answer_is_read_back() {
    for (moment, resolution) in [(Moment::Answered, "stored"), (Moment::Half, "not_stored")] {
        let isolated = isolated().await;
        let edge = Edge::new(&isolated);
        edge.send_many("before", 120).await;
        let proxy = Proxy::start(&isolated).await;
        let config = config(&proxy.before(&isolated));
        let breaking = tokio::spawn(async move {
            for _ in 0..10 {
                proxy.break_next(CLICKS, moment).await;
            }
        });
        let processor = Processor::start_with(config).await;
        counted_exactly(&isolated, 120).await;
        edge.send_many("after", 120).await;
        counted_exactly(&isolated, 240).await;
        eventually("ten inserts are broken", async || {
            edge.send_many(&uuid::Uuid::now_v7().to_string(), 6).await;
            if breaking.is_finished() { Ok(()) } else { Err(()) }
        })
        .await;
        breaking.await.unwrap();
        let sent = tests::log::records(&isolated, schemas::topic::CLICKS).len();
        counted_exactly(&isolated, sent).await;
        let series = format!("hopline_processor_doubtful_inserts_total{{resolution=\"{resolution}\"}}");
        eventually(&series, async || match metric(&processor.operations, &series).await {
            0.0 => Err(0),
            _ => Ok(()),
        })
        .await;
        processor.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_processor_waits_for_clickhouse() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    edge.send_many("early", 60).await;
    let address = free_address();
    let processor = Processor::start_with(config(&isolated.with_clickhouse_at(address))).await;
    eventually("not ready because of ClickHouse alone", async || match processor.readiness().await {
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

    let _proxy = Proxy::start_on(TcpListener::bind(address).await.unwrap(), &isolated);
    counted_exactly(&isolated, 60).await;
    eventually("ready", async || match processor.readiness().await {
        (200, _) => Ok(()),
        other => Err(other),
    })
    .await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_larger_than_memory_waits_in_kafka() {
    let isolated = isolated().await;
    let address = free_address();
    let edge = Edge::new(&isolated);
    let backlog = 60_000;
    edge.send_many("backlog", backlog).await;
    let processor = Processor::start_with(config(&isolated.with_clickhouse_at(address))).await;
    eventually("every partition is full", async || {
        let full = find_metric(&processor.operations, "hopline_processor_full_partitions").await;
        if full == Some(6.0) { Ok(()) } else { Err(full) }
    })
    .await;
    let _proxy = Proxy::start_on(TcpListener::bind(address).await.unwrap(), &isolated);
    counted_exactly(&isolated, backlog).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_processor_stops_in_time_while_clickhouse_is_down() {
    let isolated = isolated().await;
    let address = free_address();
    Edge::new(&isolated).send_many("early", 6).await;
    let processor = Processor::start_with(config(&isolated.with_clickhouse_at(address))).await;
    eventually("partitions are being taken over", async || {
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
    let kafka_brokers = free_address().to_string();
    let processor = Processor::start(&Isolated { kafka_brokers, ..isolated }).await;
    eventually("not ready because of Kafka alone", async || match processor.readiness().await {
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
