//! Ownership of partitions: which processor may insert, and from which log.

use std::path::Path;

use chrono::{TimeDelta, Utc};
use processor::operate::audit::report::Former;
use processor::pipeline::log::{Extent, Log};
use rdkafka::Timestamp;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use schemas::message::Message as _;
use schemas::topic;
use tests::engines::{counting_on, isolated, isolated_with_given_times};
use tests::faults::own_kafka_and_folder;
use tests::proxy::Proxy;
use tests::{ANSWER, eventually, metric};

use crate::adopt_topic::FORMER;
use crate::audit::assert_equal;
use crate::clicks::{Edge, click, counted, counted_exactly, present};
use crate::processor::{Processor, config, operate};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processors_on_the_same_partitions_store_each_click_once() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    // Two groups are independent, so each is assigned every partition.
    let first = Processor::start(&isolated).await;
    edge.send_many("first", 60).await;
    counted_exactly(&isolated, 60).await;
    let rival = processor::Config { group: "rival", ..config(&isolated) };
    let rival = Processor::start_with(rival).await;
    counted(
        &isolated,
        "SELECT min(owners) FROM (SELECT uniqExact(owner) AS owners FROM owners WHERE src < 4294967295 GROUP BY src)",
        2,
    )
    .await;

    // A fenced processor takes the partition over again after a pause; then both were fenced.
    let mut sent = 60;
    eventually("both took partitions again", async || {
        edge.send_many(&format!("more-{sent}"), 60).await;
        sent += 60;
        let takes = "SELECT min(takes) FROM (SELECT max(n) AS takes FROM \
                     (SELECT owner, src, count() AS n FROM owners WHERE src < 4294967295 \
                     GROUP BY owner, src) GROUP BY owner)";
        let takes = isolated.clickhouse(takes).await;
        if takes.trim().parse::<u32>().unwrap() >= 2 { Ok(()) } else { Err(takes) }
    })
    .await;
    counted_exactly(&isolated, sent).await;
    rival.stop().await;
    edge.send_many("last", 60).await;
    counted_exactly(&isolated, sent + 60).await;
    first.stop().await;
}

/// Shows that the test above can fail: without the check, the same inserts are stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_epoch_check_two_processors_double_clicks() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let [one, other] =
        [Proxy::without_epoch_check(&isolated).await, Proxy::without_epoch_check(&isolated).await];
    let first = Processor::start_with(config(&one.before(&isolated))).await;
    let rival = processor::Config { group: "rival", ..config(&other.before(&isolated)) };
    let rival = Processor::start_with(rival).await;
    let mut sent = 0;
    eventually("a click is stored twice", async || {
        edge.send_many(&format!("more-{sent}"), 60).await;
        sent += 60;
        let repeats = isolated.clickhouse("SELECT count() - uniqExact(src, koff) FROM clicks").await;
        if repeats.trim() == "0" { Err(sent) } else { Ok(()) }
    })
    .await;
    rival.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_whose_times_step_back_keeps_its_source() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let now = Utc::now();
    let sent = std::cell::Cell::new(0);
    let send = async |seconds| {
        let time = now - TimeDelta::seconds(seconds);
        let written = edge.write(0, &click(&format!("click-{}", sent.get())).encode(), Some(time)).await;
        sent.set(sent.get() + 1);
        written.timestamp == Timestamp::CreateTime(time.timestamp_millis())
    };
    // The broker applies the new setting a moment later.
    eventually("the given time is kept", async || if send(300).await { Ok(()) } else { Err(()) }).await;
    for seconds in [100, 200, 290] {
        assert!(send(seconds).await);
    }
    for _ in 0..2 {
        let processor = Processor::start(&isolated).await;
        assert!(send(295).await);
        counted_exactly(&isolated, sent.get()).await;
        processor.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_topic_is_rejected_until_the_former_one_is_back() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    isolated.clickhouse(FORMER).await;
    for number in 0..10 {
        edge.send(0, &click(&format!("click-{number}"))).await;
    }
    edge.send(1, &click("elsewhere")).await;
    let processor = Processor::start(&isolated).await;
    eventually("the topic is rejected", async || match processor.readiness().await {
        (503, report)
            if report["checks"]["partitions"]["detail"].as_str().is_some_and(|detail| {
                detail.contains("is not the log that its stored clicks came from")
                    && detail.contains("adopt-topic")
            }) =>
        {
            Ok(())
        }
        other => Err(other),
    })
    .await;
    // Only the other partitions are counted.
    counted(&isolated, "SELECT count() FROM clicks WHERE src = 65537", 1).await;
    assert_eq!(isolated.clickhouse("SELECT count() FROM clicks WHERE src = 65536").await.trim(), "0");
    isolated.clickhouse("DELETE FROM sources WHERE reason = 'test'").await;
    counted_exactly(&isolated, 11).await;
    processor.stop().await;
}

/// Returns an insert of rows of partition 0 whose records the log has lost at its end.
fn lost_rows(offsets: std::ops::Range<u64>) -> String {
    let (first, count) = (offsets.start, offsets.end - offsets.start);
    format!(
        "INSERT INTO clicks (click_id, src, koff, broker_ts) SETTINGS async_insert = 0 \
         SELECT concat('lost-', toString(number)), 65536, {first} + number, now64(3) FROM numbers({count})"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_log_continues_as_a_new_source() {
    // Since the truncation the log did not grow, grew to less than before, or grew to more.
    for grown in [0, 3, 12] {
        let isolated = isolated().await;
        let edge = Edge::new(&isolated);
        let processor = Processor::start(&isolated).await;
        for number in 0..10 {
            edge.send(0, &click(&format!("kept-{number}"))).await;
        }
        counted_exactly(&isolated, 10).await;
        processor.stop().await;
        isolated.clickhouse(&lost_rows(10..15)).await;
        for number in 0..grown {
            edge.send(0, &click(&format!("grown-{number}"))).await;
        }

        let processor = Processor::start(&isolated).await;
        let log = "SELECT concat(toString(topic_id = (SELECT any(topic_id) FROM sources WHERE src = 65536)), ' ', \
                   toString(first_offset)) FROM sources WHERE src = 131072";
        eventually("the log has a new source", async || match isolated.clickhouse(log).await.trim() {
            "1 10" => Ok(()),
            other => Err(other.to_owned()),
        })
        .await;
        for number in 0..4 {
            edge.send(0, &click(&format!("new-{number}"))).await;
        }
        counted_exactly(&isolated, 10 + 5 + grown + 4).await;
        // The metric counts all processors of this test's process.
        assert!(metric(&processor.operations, "hopline_processor_logs_cut_total").await > 0.0);
        processor.stop().await;
        let report = assert_equal(&isolated).await;
        assert_eq!(report.former, [Former { src: 65_536, from: 10, rows: 5 }], "{report}");
        // The next owner continues with the same source.
        let processor = Processor::start(&isolated).await;
        edge.send(0, &click("last")).await;
        counted_exactly(&isolated, 10 + 5 + grown + 5).await;
        processor.stop().await;
        assert_eq!(isolated.clickhouse("SELECT max(src) FROM clicks").await.trim(), "131072");
        // The replay covers both parts of the log.
        operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
        assert_equal(&isolated).await;
        let rows = "SELECT count(), uniqExact(click_id), uniqExact(src, koff) FROM clicks";
        let all = 10 + 5 + grown + 5;
        assert_eq!(isolated.clickhouse(rows).await.trim(), format!("{all}\t{all}\t{all}"));
    }
}

/// Copies a folder of files.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_restored_from_an_older_copy_is_detected() {
    let (kafka, folder) = own_kafka_and_folder().await;
    let isolated = counting_on(kafka.url(), &isolated().await.clickhouse_url, 6).await;
    let edge = Edge::new(&isolated);
    let partition = folder.join(format!("{}-0", isolated.topic(topic::CLICKS)));
    let processor = Processor::start(&isolated).await;
    for number in 0..10 {
        edge.send(0, &click(&format!("kept-{number}"))).await;
    }
    counted_exactly(&isolated, 10).await;
    kafka.kill().await;
    copy(&partition, &folder.join("../copy"));
    kafka.start().await.unwrap();
    for number in 0..5 {
        edge.send(0, &click(&format!("lost-{number}"))).await;
    }
    counted_exactly(&isolated, 15).await;
    kafka.kill().await;
    std::fs::remove_dir_all(&partition).unwrap();
    copy(&folder.join("../copy"), &partition);
    kafka.start().await.unwrap();
    // A new producer, because the old one continues the sequence of the lost records.
    let edge = Edge::new(&isolated);
    for number in 0..20 {
        edge.send(0, &click(&format!("new-{number}"))).await;
    }
    counted_exactly(&isolated, 35).await;
    let last = "SELECT src, min(koff), count() FROM clicks GROUP BY src ORDER BY src";
    assert_eq!(isolated.clickhouse(last).await.trim(), "65536\t0\t15\n131072\t10\t20");
    processor.stop().await;
    let report = assert_equal(&isolated).await;
    assert_eq!(report.former, [Former { src: 65_536, from: 10, rows: 5 }], "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_clickhouse_gets_the_rest_from_the_log() {
    for is_running in [true, false] {
        let isolated = isolated().await;
        let edge = Edge::new(&isolated);
        let mut processor = Some(Processor::start(&isolated).await);
        edge.send_many("before", 300).await;
        counted_exactly(&isolated, 300).await;
        // The copy that is restored below.
        for table in ["clicks", "progress", "stretches"] {
            isolated.clickhouse(&format!("CREATE TABLE copy_of_{table} CLONE AS {table}")).await;
        }
        edge.send_many("after", 600).await;
        counted_exactly(&isolated, 900).await;
        let passed = "SELECT min(as_of) > (SELECT max(broker_ts) FROM clicks) FROM progress FINAL";
        counted(&isolated, passed, 1).await;
        if let Some(processor) = processor.take_if(|_| !is_running) {
            processor.stop().await;
        }
        for table in ["clicks", "progress", "stretches"] {
            isolated.clickhouse(&format!("EXCHANGE TABLES {table} AND copy_of_{table}")).await;
        }
        let processor = match processor {
            Some(processor) => processor,
            None => Processor::start(&isolated).await,
        };
        // No click follows.
        counted_exactly(&isolated, 900).await;
        processor.stop().await;
        assert_equal(&isolated).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_progress_is_reported_while_a_partition_has_no_owner() {
    let isolated = isolated().await;
    let processor = Processor::start(&isolated).await;
    let is_written = || format!("SELECT max(as_of) > {} FROM progress", present());
    counted(&isolated, &is_written(), 1).await;
    // As if the last partition had been added just now.
    isolated.clickhouse("DELETE FROM sources WHERE bitAnd(src, 65535) = 5").await;
    counted(&isolated, "SELECT max(as_of) < now64(3) - 5 FROM progress", 1).await;
    processor.stop().await;
    let processor = Processor::start(&isolated).await;
    counted(&isolated, &is_written(), 1).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_added_partition_is_detected() {
    let isolated = isolated().await;
    let name = isolated.topic(topic::CLICKS);
    let log = Log::new(&config(&isolated).kafka, &name, "looks").unwrap();
    let added = topic::CLICKS.partitions;
    assert_eq!(log.extent(added - 1).await.unwrap(), Extent { start: 0, end: 0 });
    assert!(log.extent(added).await.is_err(), "the partition does not exist yet");
    let admin: AdminClient<DefaultClientContext> = isolated.kafka().create().unwrap();
    let more = NewPartitions::new(&name, added as usize + 1);
    admin.create_partitions([&more], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
    eventually("another client sees the partition", async || {
        let metadata = admin.inner().fetch_metadata(Some(&name), ANSWER).unwrap();
        let seen = metadata.topics()[0].partitions().len();
        if seen > added as usize { Ok(()) } else { Err(seen) }
    })
    .await;
    assert_eq!(log.extent(added).await.unwrap(), Extent { start: 0, end: 0 });
}
