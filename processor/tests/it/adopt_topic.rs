//! A wiped topic is adopted: counted clicks stay, and the new log is counted from its start.

use std::process::Stdio;

use processor::clickhouse::{After, FencingToken, InsertError, Store};
use processor::operate::audit::report::Former;
use processor::pipeline::log::Log;
use processor::pipeline::ownership::Claim;
use schemas::row::source;
use schemas::topic;
use tests::engines::{Isolated, isolated};
use tests::eventually;
use tests::proxy::{Fate, Moment, OWNERS, Proxy};
use tokio_util::sync::CancellationToken;

use crate::audit::assert_equal;
use crate::clicks::{Edge, again, click, counted, counted_exactly, present, wait_until_processed};
use crate::processor::{Processor, config, operate, program};
use crate::storing::insertion;
use crate::upkeep::eager;

/// Makes the clicks of partition 0 belong to another topic.
pub(crate) const FORMER: &str = "INSERT INTO sources (src, topic_id, at, reason) \
     SELECT 65536, generateUUIDv4(), now64(3), 'test' SETTINGS async_insert = 0";

/// Waits until the processor's readiness of partitions contains this text.
async fn wait_for_readiness(processor: &Processor, status: u16, text: &str) {
    eventually(text, async || {
        let (found, report) = processor.readiness().await;
        let detail = report["checks"]["partitions"]["detail"].as_str().unwrap_or_default();
        if found == status && detail.contains(text) { Ok(()) } else { Err(report) }
    })
    .await;
}

async fn sources(isolated: &Isolated) -> String {
    isolated.clickhouse("SELECT arraySort(groupUniqArray(src)) FROM clicks").await.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_topic_is_counted_from_its_start() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start(&isolated).await;
    edge.send_many("old", 60).await;
    let marked = click("marked");
    edge.send(0, &again(&marked)).await;
    counted_exactly(&isolated, 61).await;
    edge.write(1, b"no click", None).await;
    wait_until_processed(&isolated).await;
    assert_equal(&isolated).await;
    let nothing = operate(&isolated, &["adopt-topic"]).await.unwrap_err().to_string();
    assert!(nothing.contains("nothing to adopt"), "{nothing}");
    processor.stop().await;

    isolated.recreate_topic(topic::CLICKS).await;
    let edge = Edge::new(&isolated);
    // Longer than the former log. The first copy of the marked click arrives late.
    edge.send(0, &marked).await;
    edge.send_many("new", 120).await;
    edge.write(1, b"no click", None).await;
    let dry = operate(&isolated, &["adopt-topic", "--dry-run"]).await.unwrap();
    let first = &dry["partitions"][0];
    assert_eq!(
        (&dry["dry_run"], &first["src"], &first["new_src"]),
        (&true.into(), &65_536.into(), &131_072.into())
    );
    assert_eq!(
        (&first["stored"]["rows"], &first["stored"]["last_offset"]),
        (&11.into(), &10.into()),
        "{dry}"
    );
    assert_eq!((&first["log"]["start"], &first["log"]["end"]), (&0.into(), &21.into()), "{dry}");
    assert_eq!(isolated.clickhouse("SELECT count() FROM sources").await.trim(), "6");

    operate(&isolated, &["adopt-topic"]).await.unwrap();
    let twice = operate(&isolated, &["adopt-topic"]).await.unwrap_err().to_string();
    assert!(twice.contains("nothing to adopt"), "{twice}");
    let processor = Processor::start(&isolated).await;
    counted_exactly(&isolated, 181).await;
    wait_until_processed(&isolated).await;
    let report = assert_equal(&isolated).await;
    let of_former = |partition: u16| Former {
        src: source(1, partition),
        from: 0,
        rows: if partition == 0 { 11 } else { 10 },
    };
    assert_eq!(report.former, (0..6).map(of_former).collect::<Vec<_>>());
    assert_eq!(report.sources.iter().map(|source| source.rows).sum::<u64>(), 120);
    assert_eq!((report.sources[0].repeats, report.sources[1].dead_letters), (1, 1));
    assert_eq!(report.classes["human"].rows, 181);
    processor.stop().await;

    // A replay rejects ranges of the former log: its records cannot be read again.
    for (range, refusal) in [
        (&["--offsets", "0:0-100"][..], "ends at offset 21: it replaced another log"),
        (&["--from", "2026-01-01T00:00:00Z"], "with the log that it replaced"),
    ] {
        let refused = operate(&isolated, &[&["replay"], range].concat()).await.unwrap_err().to_string();
        assert!(refused.contains(refusal), "{refused}");
    }
    operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    assert_equal(&isolated).await;
    let rows = "SELECT count(), uniqExact(click_id), uniqExact(src, koff) FROM clicks";
    assert_eq!(isolated.clickhouse(rows).await.trim(), "181\t181\t181");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_processors_resume_after_a_wiped_topic_is_adopted() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    edge.send_many("old", 600).await;
    counted_exactly(&isolated, 600).await;
    wait_until_processed(&isolated).await;

    isolated.recreate_topic(topic::CLICKS).await;
    // Nothing was written to the new topic yet, and progress stays unchanged.
    wait_for_readiness(&processor, 503, "adopt-topic").await;
    let as_of = "SELECT max(as_of) FROM progress";
    let before = isolated.clickhouse(as_of).await;
    let edge = Edge::new(&isolated);
    edge.send_many("new", 60).await;
    wait_for_readiness(&processor, 503, "adopt-topic").await;
    assert_eq!(isolated.clickhouse(as_of).await, before);
    assert_eq!(isolated.clickhouse("SELECT count() FROM clicks").await.trim(), "600");

    operate(&isolated, &["adopt-topic"]).await.unwrap();
    counted_exactly(&isolated, 660).await;
    edge.send_many("more", 600).await;
    counted_exactly(&isolated, 1_260).await;
    wait_for_readiness(&processor, 200, "owns 6 partitions").await;
    wait_until_processed(&isolated).await;
    let report = assert_equal(&isolated).await;
    assert_eq!(report.former.iter().map(|former| former.rows).sum::<u64>(), 600);
    // Upkeep waits for the sources of the new log.
    let passed = format!("SELECT min(as_of) > {} FROM progress FINAL WHERE src >= 131072", present());
    counted(&isolated, &passed, 1).await;
    processor.stop().await;
    let processor = Processor::start(&isolated).await;
    edge.send_many("last", 60).await;
    counted_exactly(&isolated, 1_320).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_partition_is_adopted_without_the_others() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    // A row that was stored from another topic.
    isolated.clickhouse(FORMER).await;
    isolated
        .clickhouse(
            "INSERT INTO clicks (click_id, src, koff, broker_ts) SETTINGS async_insert = 0 \
             SELECT 'foreign', 65536, 1000, now64(3)",
        )
        .await;
    edge.send_many("click", 60).await;
    let processor = Processor::start(&isolated).await;
    wait_for_readiness(&processor, 503, "partition 0 of topic").await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id != 'foreign'", 50).await;
    let outcome = operate(&isolated, &["adopt-topic"]).await.unwrap();
    let is_adopted = |partition: &serde_json::Value| !partition["evidence"].is_null();
    let adopted: Vec<bool> = outcome["partitions"].as_array().unwrap().iter().map(is_adopted).collect();
    assert_eq!(adopted, [true, false, false, false, false, false], "{outcome}");
    counted_exactly(&isolated, 61).await;
    assert_eq!(sources(&isolated).await, "[65536,65537,65538,65539,65540,65541,131072]");
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_under_a_former_source_is_rejected() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let store =
        Store::new(service::clickhouse::Clickhouse::new(&config(&isolated).clickhouse), "former".to_owned());
    let src = source(1, 0);
    isolated.clickhouse(FORMER).await;
    let token = FencingToken { src, epoch: store.raise_epoch(src).await.unwrap() };
    let after = After::default();
    store.insert(token, after, &insertion(src, 0..10)).await.unwrap();
    edge.send(0, &click("new")).await;
    operate(&isolated, &["adopt-topic"]).await.unwrap();
    let refused = store.insert(token, after, &insertion(src, 10..20)).await.unwrap_err();
    assert!(matches!(refused, InsertError::Fenced), "{refused}");
    // Raising the epoch of the former source does not help.
    let config = config(&isolated);
    let topic = isolated.topic(topic::CLICKS);
    let log = Log::new(&config.kafka, &topic, "former").unwrap();
    let mut claim = Claim::new(0, store, log, CancellationToken::new());
    let ownership = claim.take_over().await.unwrap();
    assert_eq!((ownership.token.src, ownership.position.next), (source(2, 0), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_adoption_is_completed_by_the_next() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start(&isolated).await;
    edge.send_many("old", 600).await;
    counted_exactly(&isolated, 600).await;
    wait_until_processed(&isolated).await;
    // One of the steps copies the progress of the former source to the new one.
    counted(&isolated, "SELECT uniqExact(src) FROM progress", 6).await;
    processor.stop().await;
    isolated.recreate_topic(topic::CLICKS).await;
    Edge::new(&isolated).send_many("new", 60).await;

    const PROGRESS: &[u8] = b"INSERT INTO progress";
    const SOURCES: &[u8] = b"INSERT INTO sources";
    let mut adopted = 0;
    for (statement, moment, adopts) in [
        (OWNERS, Moment::Before, 0),
        (OWNERS, Moment::Answered, 0),
        (PROGRESS, Moment::Answered, 0),
        (SOURCES, Moment::Before, 0),
        (SOURCES, Moment::Answered, 1),
    ] {
        // A separate source for each round, because a statement of the killed program may still be running.
        let proxy = Proxy::start(&isolated).await;
        proxy.set(statement, moment);
        let mut program =
            program(&proxy.before(&isolated), &["adopt-topic"]).stdout(Stdio::null()).spawn().unwrap();
        tokio::select! {
            () = proxy.holds() => {}
            ended = program.wait() => panic!("{moment:?}: it ended by itself: {}", ended.unwrap()),
        }
        program.kill().await.unwrap();
        proxy.release(Fate::IsCut);
        adopted += adopts;
        let rows = isolated.clickhouse("SELECT count() - 6 FROM sources").await;
        assert_eq!(rows.trim(), adopted.to_string(), "{moment:?}");
    }
    // One partition has its new source, the others are rejected.
    let processor = Processor::start(&isolated).await;
    eventually("the new log of one partition is counted", async || {
        let clicks = isolated.clickhouse("SELECT count() FROM clicks").await;
        if clicks.trim() == "610" { Ok(()) } else { Err((clicks, processor.readiness().await)) }
    })
    .await;
    wait_for_readiness(&processor, 503, "adopt-topic").await;
    operate(&isolated, &["adopt-topic"]).await.unwrap();
    counted_exactly(&isolated, 660).await;
    wait_until_processed(&isolated).await;
    processor.stop().await;
    assert_equal(&isolated).await;
    let rows = "SELECT count(), uniqExact(src), max(bitShiftRight(src, 16)) FROM sources";
    assert_eq!(isolated.clickhouse(rows).await.trim(), "12\t12\t2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_offsets_in_the_new_log_skip_no_click() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start(&isolated).await;
    edge.send_many("old", 60).await;
    counted_exactly(&isolated, 60).await;
    wait_until_processed(&isolated).await;
    processor.stop().await;
    isolated.recreate_topic(topic::CLICKS).await;
    Edge::new(&isolated).send_many("new", 120).await;
    operate(&isolated, &["adopt-topic"]).await.unwrap();
    // As a processor does that commits its last insert after the adoption.
    let group = format!("{}hopline-processor", isolated.topic_prefix);
    let member: rdkafka::consumer::BaseConsumer =
        isolated.kafka().set("group.id", group).set("enable.auto.commit", "false").create().unwrap();
    let mut offsets = rdkafka::TopicPartitionList::new();
    for partition in 0..topic::CLICKS.partitions {
        let offset = rdkafka::Offset::Offset(10);
        offsets.add_partition_offset(&isolated.topic(topic::CLICKS), partition, offset).unwrap();
    }
    rdkafka::consumer::Consumer::commit(&member, &offsets, rdkafka::consumer::CommitMode::Sync).unwrap();
    let processor = Processor::start(&isolated).await;
    counted_exactly(&isolated, 180).await;
    wait_until_processed(&isolated).await;
    processor.stop().await;
    assert_equal(&isolated).await;
}
