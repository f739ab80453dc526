//! Who may insert, and into which log.

use chrono::{TimeDelta, Utc};
use processor::log::{Extent, Log};
use rdkafka::Timestamp;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use schemas::message::Message as _;
use schemas::row::source;
use schemas::topic;
use tests::engines::{Isolated, isolated};
use tests::eventually;
use tests::proxy::Proxy;

use crate::audit::with_given_times;
use crate::clicks::{Edge, SOON, click, counted, counted_exactly};
use crate::processor::{Processor, config};
use crate::upkeep::processors_store;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processors_on_the_same_partitions_never_store_a_click_twice() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    // Groups know nothing of each other, so both are given every partition.
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

    // A fenced processor takes the partition again after a while: then both have been refused.
    let mut sent = 60;
    eventually("both took partitions again", SOON, async || {
        edge.send_many(&format!("more-{sent}"), 60).await;
        sent += 60;
        let takes = "SELECT min(takes) FROM (SELECT max(n) AS takes FROM \
                     (SELECT owner, src, count() AS n FROM owners WHERE src < 4294967295 GROUP BY owner, src) GROUP BY owner)";
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

/// Shows that the test above can fail: what is refused there is stored here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_check_of_their_epochs_two_processors_on_the_same_partitions_double_clicks() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let [one, other] =
        [Proxy::without_epoch_check(&isolated).await, Proxy::without_epoch_check(&isolated).await];
    let first = Processor::start_with(config(&one.before(&isolated))).await;
    let rival = processor::Config { group: "rival", ..config(&other.before(&isolated)) };
    let rival = Processor::start_with(rival).await;
    let mut sent = 0;
    eventually("a click is there twice", SOON, async || {
        edge.send_many(&format!("more-{sent}"), 60).await;
        sent += 60;
        let repeats = isolated.clickhouse("SELECT count() - uniqExact(src, koff) FROM clicks_1").await;
        if repeats.trim() == "0" { Err(sent) } else { Ok(()) }
    })
    .await;
    rival.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_whose_times_step_back_is_the_one_that_its_rows_came_from() {
    let isolated = isolated().await;
    with_given_times(&isolated).await;
    let edge = Edge::new(&isolated);
    let now = Utc::now();
    let sent = std::cell::Cell::new(0);
    let send = async |seconds| {
        let time = now - TimeDelta::seconds(seconds);
        let written = edge.write(0, &click(&format!("click-{}", sent.get())).encode(), Some(time)).await;
        sent.set(sent.get() + 1);
        written.timestamp == Timestamp::CreateTime(time.timestamp_millis())
    };
    // The broker takes the new setting up a moment later.
    eventually("the given time is kept", SOON, async || if send(300).await { Ok(()) } else { Err(()) }).await;
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

/// A row as it was stored from another log, at this offset of partition 0 and this many seconds ago.
fn foreign_row(koff: u64, seconds_ago: u32) -> String {
    format!(
        "INSERT INTO clicks_1 (click_id, src, koff, broker_ts) SETTINGS async_insert = 0 \
         SELECT 'foreign', 65536, {koff}, now64(3) - {seconds_ago}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_kafka_is_refused_and_the_refusal_says_what_to_do_until_the_log_is_back() {
    // The new log is shorter than the old one was, or has outgrown it.
    for (koff, seconds_ago) in [(1_000, 0), (3, 3_600), (3, 1)] {
        let isolated = isolated().await;
        let edge = Edge::new(&isolated);
        isolated.clickhouse(&foreign_row(koff, seconds_ago)).await;
        for number in 0..10 {
            edge.send(0, &click(&format!("click-{number}"))).await;
        }
        edge.send(1, &click("elsewhere")).await;
        let processor = Processor::start(&isolated).await;
        eventually("a refusal", SOON, async || match processor.readiness().await {
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
        // Other partitions are counted; of this one nothing is.
        counted(&isolated, "SELECT count() FROM clicks_1 WHERE src = 65537", 1).await;
        assert_eq!(isolated.clickhouse("SELECT count() FROM clicks_1 WHERE src = 65536").await.trim(), "1");
        // As if the log were back that the rows came from.
        isolated.clickhouse("DELETE FROM clicks_1 WHERE click_id = 'foreign'").await;
        counted_exactly(&isolated, 11).await;
        processor.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_was_added_is_known_to_whoever_had_looked_before() {
    let isolated = isolated().await;
    let name = isolated.topic(topic::CLICKS);
    let log = Log::new(&config(&isolated).kafka, &name, "looks").unwrap();
    let added = topic::CLICKS.partitions;
    assert_eq!(log.extent(added - 1).await.unwrap(), Extent { start: 0, end: 0 });
    assert!(log.extent(added).await.is_err(), "it is not there yet");
    let admin: AdminClient<DefaultClientContext> = isolated.kafka().create().unwrap();
    let more = NewPartitions::new(&name, added as usize + 1);
    admin.create_partitions([&more], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
    let extent = eventually("it is known", SOON, async || log.extent(added).await).await;
    assert_eq!(extent, Extent { start: 0, end: 0 });
}

/// The processor of an [`Isolated`] with one click of partition 0 counted, and then the partition taken from it.
async fn fenced(isolated: &Isolated) -> (Processor, u64) {
    let edge = Edge::new(isolated);
    let processor = Processor::start(isolated).await;
    edge.send(0, &click("before")).await;
    counted_exactly(isolated, 1).await;
    let epoch = processors_store(isolated).raise_epoch(source(1, 0)).await.unwrap();
    edge.send(0, &click("after")).await;
    (processor, epoch)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_was_fenced_for_a_switch_stays_away_until_it_is_over() {
    let (switching, other) = (isolated().await, isolated().await);
    let at_work = |step: &str, seconds: u32| {
        format!("INSERT INTO rebuilds SELECT 2, '{step}', '{{}}', now64(3) + {seconds}")
    };
    switching.clickhouse(&at_work("rolled_up", 3_600)).await;
    let (away, epoch) = fenced(&switching).await;
    // Where nobody switches, a partition is taken again after a while: twice as long passes here.
    let (back, _) = fenced(&other).await;
    counted_exactly(&other, 2).await;
    processors_store(&other).raise_epoch(source(1, 0)).await.unwrap();
    Edge::new(&other).send(0, &click("once more")).await;
    counted_exactly(&other, 3).await;
    let highest = format!("SELECT max(epoch) FROM owners WHERE src = {}", source(1, 0));
    assert_eq!(switching.clickhouse(&highest).await.trim(), epoch.to_string());

    switching.clickhouse(&at_work("switched", 3_601)).await;
    counted_exactly(&switching, 2).await;
    away.stop().await;
    back.stop().await;
}
