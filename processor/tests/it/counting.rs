//! Each click becomes one row, whichever processors start and stop.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use rdkafka::Timestamp;
use schemas::message::Message as _;
use tests::engines::{isolated, isolated_with_given_times};
use tests::{eventually, metrics_page};

use crate::clicks::{Edge, click, counted, counted_exactly, present};
use crate::processor::{Processor, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_field_of_a_click_is_in_its_column() {
    let isolated = isolated().await;
    let click = click("the-click");
    let offset = Edge::new(&isolated).send(3, &click).await;
    let processor = Processor::start(&isolated).await;
    counted_exactly(&isolated, 1).await;

    let row = isolated
        .clickhouse(
            "SELECT workspace_id, link_id, toUnixTimestamp64Milli(occurred_at) AS millis, click_id, slug, class, \
             toString(visitor) AS visitor, country, device_type, browser, os, referrer, utm_source, utm_medium, \
             utm_campaign, utm_term, utm_content, external_click_id, user_agent, purpose, again, src, \
             toString(koff) AS koff, broker_ts >= occurred_at AS later FROM clicks FORMAT JSONEachRow",
        )
        .await;
    let row: serde_json::Value = serde_json::from_str(&row).unwrap();
    let expected = serde_json::json!({
        "workspace_id": click.workspace_id.uuid(),
        "link_id": click.link_id.uuid(),
        "millis": click.occurred_at.timestamp_millis(),
        "click_id": "the-click",
        "slug": "spring",
        "class": "human",
        "visitor": 0x00c0_ffee_00c0_ffee_u64.to_string(),
        "country": "DE",
        "device_type": "mobile",
        "browser": "Firefox",
        "os": "Android",
        "referrer": "news.example",
        "utm_source": "newsletter",
        "utm_medium": "email",
        "utm_campaign": "Frühling",
        "utm_term": "shoes",
        "utm_content": "top",
        "external_click_id": "abc",
        "user_agent": "Mozilla/5.0 (Android 15; Mobile) Firefox/140.0",
        "purpose": "prefetch",
        "again": false,
        "src": (1 << 16) | 3,
        "koff": offset.to_string(),
        "later": 1,
    });
    assert_eq!(row, expected);
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_offsets_of_the_group_change_no_count() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    edge.send_many("first", 600).await;
    let processor = Processor::start(&isolated).await;
    counted_exactly(&isolated, 600).await;
    processor.stop().await;

    edge.send_many("second", 60).await;
    // A group that has never committed reads the log from its beginning.
    let other = processor::Config { group: "another-group", ..config(&isolated) };
    let processor = Processor::start_with(other).await;
    counted_exactly(&isolated, 660).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processors_that_join_and_leave_count_every_click_once() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let first = Processor::start(&isolated).await;
    edge.send_many("alone", 300).await;
    counted_exactly(&isolated, 300).await;

    let second = Processor::start(&isolated).await;
    let owners = "SELECT uniqExact(owner) FROM (SELECT argMax(owner, epoch) AS owner FROM owners \
         WHERE src < 4294967295 GROUP BY src)";
    let (sent, ()) = tokio::join!(edge.send_many("together", 1_200), counted(&isolated, owners, 2));
    let () = sent;
    counted_exactly(&isolated, 1_500).await;

    tokio::join!(first.stop(), edge.send_many("leaving", 1_200));
    counted_exactly(&isolated, 2_700).await;
    counted(&isolated, owners, 1).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_boundary_cuts_the_batch() {
    let isolated = isolated_with_given_times().await;
    // The test sets the time that the broker normally sets.
    let edge = Edge::new(&isolated);
    let boundary: DateTime<Utc> = "2026-11-12T00:00:00Z".parse().unwrap();
    let (mut sent, mut before) = (0, 0);
    let mut send = async |millis| {
        let time = boundary + TimeDelta::milliseconds(millis);
        let written = edge.write(0, &click(&format!("click-{sent}")).encode(), Some(time)).await;
        let as_given = written.timestamp == Timestamp::CreateTime(time.timestamp_millis());
        sent += 1;
        before += usize::from(as_given && millis < 0);
        as_given
    };
    // The broker applies the new setting a moment later.
    eventually("the given time is kept", async || if send(-3).await { Ok(()) } else { Err(()) }).await;
    for millis in [-2, -1, 0, 1, -1, 2] {
        assert!(send(millis).await);
    }
    assert_eq!(before, 4);
    // With this setting, ClickHouse rejects an insert that spans two partitions of the table.
    let processor = Processor::start(&isolated).await;
    counted_exactly(&isolated, sent).await;
    let days = "SELECT countIf(toDate(broker_ts) = '2026-11-11'), uniqExact(_partition_id) > 1 FROM clicks";
    assert_eq!(isolated.clickhouse(days).await.trim(), "4\t1");
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_partition_has_progress() {
    let isolated = isolated().await;
    let processor = Processor::start(&isolated).await;
    let ready = eventually("ready", async || match processor.readiness().await {
        (200, report) => Ok(report),
        other => Err(other),
    })
    .await;
    // Not ready before it has joined its group, while it owns no partition.
    assert_eq!(ready["checks"]["partitions"]["detail"], "owns 6 partitions");
    // The `as_of` of idle partitions keeps growing.
    for _ in 0..2 {
        let sources =
            format!("SELECT arraySort(groupUniqArray(src)) FROM progress WHERE as_of > {}", present());
        counted(&isolated, &sources, "[65536,65537,65538,65539,65540,65541]").await;
    }
    // A click is counted when as_of has passed its time.
    Edge::new(&isolated).send(2, &click("one")).await;
    counted_exactly(&isolated, 1).await;
    let passed = "SELECT max(as_of) > (SELECT max(broker_ts) FROM clicks) FROM progress WHERE src = 65538";
    counted(&isolated, passed, 1).await;

    let metrics = metrics_page(&processor.operations).await;
    let names: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for name in [
        "hopline_processor_lag_offsets",
        "hopline_processor_rows_inserted_total",
        "hopline_processor_batches_total",
        "hopline_processor_insert_seconds",
        "hopline_processor_takeovers_total",
    ] {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    processor.stop().await;
}
