//! A replay changes nothing, whatever it is killed at, and brings back what was lost.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::Utc;
use processor::operate::lag::lag;
use schemas::id::LinkId;
use schemas::message::{DeletedLink, LinkRecord, Message as _, Version};
use schemas::topic;
use tests::engines::{Isolated, isolated};
use tests::eventually;
use tests::processor::kill_after;
use tokio::task::JoinHandle;

use crate::audit::assert_equal;
use crate::clicks::{Edge, SOON, again, click, counted};
use crate::processor::{Processor, config, operate, program};
use crate::rollups::{link, random_clicks, recent_month, store};
use crate::upkeep::{all_closed, eager, write};

/// Starts a command and kills it soon after a step.
async fn start_and_kill_after(isolated: &Isolated, command: &[&str], step: &str) {
    let mut replay = program(isolated, command).stdout(Stdio::null()).spawn().unwrap();
    kill_after(isolated, step, &mut replay).await;
}

/// Waits until everything on the topic is done.
pub(crate) async fn all_done(isolated: &Isolated) {
    eventually("everything is done", SOON, async || {
        let lags = lag(&config(isolated)).await.unwrap();
        if lags.offsets == 0 { Ok(()) } else { Err(lags) }
    })
    .await;
}

/// Makes the last switch look a minute older, after which nobody reads the former tables.
pub(crate) async fn a_minute_passes(isolated: &Isolated) {
    isolated
        .clickhouse("ALTER TABLE generations UPDATE at = at - 61 WHERE 1 SETTINGS mutations_sync = 1")
        .await;
}

/// Clicks of closed slices that the log does not hold any more, and clicks, repeats and what is no click in the log.
async fn counted_clicks(isolated: &Isolated, edge: &Edge<'_>) {
    let first = recent_month(Utc::now().date_naive()).pred_opt().unwrap();
    store(isolated, &random_clicks(first, 4, 600)).await;
    let sent: Vec<_> = (0..300).map(|number| click(&format!("sent-{number}"))).collect();
    for (number, click) in sent.iter().enumerate() {
        edge.send(number as i32 % 6, click).await;
    }
    for (number, click) in sent.iter().enumerate().step_by(7) {
        edge.send(number as i32 % 6, &again(click)).await;
    }
    edge.write(2, b"no click", None).await;
}

/// Reads the counts of the current generation again and again until told to stop, as queries do.
///
/// Those of [`counted_clicks`] must never change, and live ones never become fewer.
pub(crate) fn watch(isolated: &Isolated, stop: &Arc<AtomicBool>) -> JoinHandle<usize> {
    let (isolated, stop) = (isolated.clone(), Arc::clone(stop));
    tokio::spawn(async move {
        let (mut rounds, mut live) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            let generation = isolated.clickhouse("SELECT max(generation) FROM generations").await;
            let generation = generation.trim();
            let counts = isolated
                .clickhouse(&format!(
                    "SELECT countIf(NOT startsWith(click_id, 'live-')), \
                     uniqExactIf(click_id, NOT startsWith(click_id, 'live-')), \
                     countIf(startsWith(click_id, 'live-')), uniqExactIf(click_id, startsWith(click_id, 'live-')) \
                     FROM clicks_{generation}"
                ))
                .await;
            let counts: Vec<u64> = counts.split_whitespace().map(|count| count.parse().unwrap()).collect();
            assert_eq!(counts[..2], [900, 900], "in generation {generation}");
            assert_eq!(counts[2], counts[3], "in generation {generation}");
            assert!(counts[2] >= live, "{} after {live} in generation {generation}", counts[2]);
            live = counts[2];
            rounds += 1;
        }
        rounds
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_changes_no_count_while_live_clicks_go_on() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    counted_clicks(&isolated, &edge).await;
    all_done(&isolated).await;
    all_closed(&isolated).await;
    let before = assert_equal(&isolated).await;

    let stop = Arc::new(AtomicBool::new(false));
    let watch = watch(&isolated, &stop);
    let live = async {
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            edge.send(sent % 6, &click(&format!("live-{sent}"))).await;
            sent += 1;
        }
        sent
    };
    let replays = async {
        for range in [&["--from", "earliest"][..], &["--offsets", "1:3-30", "--offsets", "4:0-1"]] {
            let dry = operate(&isolated, &[&["replay", "--dry-run"], range].concat()).await.unwrap();
            assert_eq!(dry["dry_run"], true);
            operate(&isolated, &[&["replay"], range].concat()).await.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (sent, ()) = tokio::join!(live, replays);
    assert!(watch.await.unwrap() > 10);
    assert!(sent > 10);
    all_done(&isolated).await;
    let after = assert_equal(&isolated).await;
    assert_eq!(after.generation, 3);
    assert_eq!(after.closed_until, before.closed_until);
    let rows = "SELECT count(), uniqExact(click_id), uniqExact(src, koff) FROM clicks_3";
    let all = 900 + sent;
    assert_eq!(isolated.clickhouse(rows).await.trim(), format!("{all}\t{all}\t{all}"));
    // Former tables can go when nobody reads them any more, the current ones cannot.
    let early = operate(&isolated, &["drop-generation", "2"]).await.unwrap_err().to_string();
    assert!(early.contains("may still read generation 2: wait "), "{early}");
    a_minute_passes(&isolated).await;
    operate(&isolated, &["drop-generation", "2"]).await.unwrap();
    operate(&isolated, &["drop-generation", "1"]).await.unwrap();
    assert_eq!(isolated.clickhouse("EXISTS TABLE clicks_1").await.trim(), "0");
    let refused = operate(&isolated, &["drop-generation", "3"]).await.unwrap_err();
    assert!(refused.to_string().contains("is the current one"), "{refused}");
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_lost_comes_back_and_a_deleted_link_does_not() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    let mut gone = click("gone");
    gone.link_id = link(5);
    edge.send(1, &gone).await;
    counted_clicks(&isolated, &edge).await;
    all_done(&isolated).await;
    delete(&isolated, link(5)).await;
    counted(&isolated, "SELECT count() FROM clicks_1 WHERE click_id = 'gone'", 0).await;
    processor.stop().await;
    // What is behind the last row, the processor would count by itself.
    let last = isolated.clickhouse(
        "SELECT groupArray((src, last)) FROM (SELECT src, max(koff) AS last FROM clicks_1 GROUP BY src)",
    );
    let last = last.await.replace('[', "(").replace(']', ")");
    isolated
        .clickhouse(&format!("DELETE FROM clicks_1 WHERE src < 131072 AND (src, koff) NOT IN {last}"))
        .await;

    operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    let report = assert_equal(&isolated).await;
    assert_eq!(report.sources.iter().map(|source| source.rows).sum::<u64>(), 300);
    assert_eq!(report.sources[1].deleted, 1);
    assert_eq!(isolated.clickhouse("SELECT count() FROM clicks_2 WHERE click_id = 'gone'").await.trim(), "0");

    // Of tables of which nothing is left, everything that the log has is counted again by whoever takes its partitions.
    for table in ["clicks_2", "counts_2", "breakdowns_2", "slices_2"] {
        isolated.clickhouse(&format!("TRUNCATE TABLE {table}")).await;
    }
    let processor = Processor::start_with(eager(&isolated)).await;
    counted(&isolated, "SELECT count() FROM clicks_2", 300).await;
    edge.send(0, &click("last")).await;
    counted(&isolated, "SELECT count() FROM clicks_2 WHERE click_id = 'last'", 1).await;
    processor.stop().await;
    assert_equal(&isolated).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_was_idle_goes_on_after_its_former_tables_are_gone() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    edge.send_many("click", 60).await;
    all_done(&isolated).await;
    operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    a_minute_passes(&isolated).await;
    operate(&isolated, &["drop-generation", "1"]).await.unwrap();
    // Marked, so that it is looked up before anything is inserted.
    edge.send(5, &again(&click("late"))).await;
    counted(&isolated, "SELECT count() FROM clicks_2 WHERE click_id = 'late'", 1).await;
    processor.stop().await;
    assert_equal(&isolated).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replays_at_once_leave_every_count_as_it_was() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    counted_clicks(&isolated, &edge).await;
    all_done(&isolated).await;
    let replay = async || operate(&isolated, &["replay", "--from", "earliest"]).await;
    let (one, other) = tokio::join!(replay(), replay());
    assert!(one.is_ok() || other.is_ok(), "{one:?}, {other:?}");
    let generation = isolated.clickhouse("SELECT max(generation) FROM generations").await;
    let rows = format!("SELECT count(), uniqExact(click_id) FROM clicks_{}", generation.trim());
    assert_eq!(isolated.clickhouse(&rows).await.trim(), "900\t900");
    processor.stop().await;
    assert_equal(&isolated).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_was_counted_for_a_lost_click_counts_once_when_the_log_brings_the_first_one_back() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    let (before, meanwhile) = (click("before"), click("meanwhile"));
    for click in [&before, &meanwhile] {
        edge.send(1, click).await;
    }
    all_done(&isolated).await;
    isolated.clickhouse("DELETE FROM clicks_1 WHERE click_id IN ('before', 'meanwhile')").await;
    edge.send(1, &again(&before)).await;
    counted(&isolated, "SELECT count() FROM clicks_1 WHERE click_id = 'before'", 1).await;
    all_done(&isolated).await;

    start_and_kill_after(&isolated, &["replay", "--offsets", "1:0-2"], "planned").await;
    // Live, it is a row of the former tables.
    edge.send(1, &again(&meanwhile)).await;
    counted(&isolated, "SELECT count() FROM clicks_1 WHERE click_id = 'meanwhile'", 1).await;
    eventually("the killed one counts as dead", SOON, async || {
        operate(&isolated, &["replay", "--resume"]).await.map_err(|error| error.to_string())
    })
    .await;
    all_done(&isolated).await;
    let rows = "SELECT click_id, count() FROM clicks_2 GROUP BY click_id ORDER BY click_id";
    assert_eq!(isolated.clickhouse(rows).await.trim(), "before\t1\nmeanwhile\t1");
    processor.stop().await;
    assert_equal(&isolated).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_was_given_up_leaves_its_number_to_nobody() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    counted_clicks(&isolated, &edge).await;
    all_done(&isolated).await;
    start_and_kill_after(&isolated, &["replay", "--from", "earliest"], "planned").await;
    eventually("it counts as dead", SOON, async || {
        operate(&isolated, &["drop-generation", "2"]).await.map_err(|error| error.to_string())
    })
    .await;
    let done = operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    assert_eq!(done["plan"]["generation"], 3);
    assert_eq!(isolated.clickhouse("SELECT max(generation) FROM generations").await.trim(), "3");
    assert_eq!(isolated.clickhouse("EXISTS TABLE clicks_2").await.trim(), "0");
    processor.stop().await;
    assert_equal(&isolated).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_former_tables_of_a_replay_that_is_not_done_are_kept() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    edge.send_many("click", 60).await;
    all_done(&isolated).await;
    operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    // As if it had been killed right after the switch.
    isolated.clickhouse("DELETE FROM rebuilds WHERE step = 'switched'").await;
    eventually("it counts as dead", SOON, async || {
        let refused = operate(&isolated, &["drop-generation", "1"]).await.unwrap_err().to_string();
        if refused.contains("still needs generation 1") { Ok(()) } else { Err(refused) }
    })
    .await;
    operate(&isolated, &["replay", "--resume"]).await.unwrap();
    a_minute_passes(&isolated).await;
    operate(&isolated, &["drop-generation", "1"]).await.unwrap();
    processor.stop().await;
    assert_equal(&isolated).await;
}

pub(crate) async fn delete(isolated: &Isolated, link: LinkId) {
    let deleted = DeletedLink { version: Version, id: link, revision: 9, deleted_at: Utc::now() };
    write(isolated, topic::LINKS, &link.to_string(), &LinkRecord::Deleted(deleted).encode()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_killed_at_any_step_is_taken_up_again() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    counted_clicks(&isolated, &edge).await;
    all_done(&isolated).await;
    all_closed(&isolated).await;
    let stop = Arc::new(AtomicBool::new(false));
    let watch = watch(&isolated, &stop);

    let mut command = &["replay", "--from", "earliest"][..];
    for step in ["planned", "copied", "filled", "rolled_up"] {
        start_and_kill_after(&isolated, command, step).await;
        command = &["replay", "--resume"];
        // A second one is refused as long as the first may be alive, and a new one as long as it is not done.
        let refused = operate(&isolated, &["replay", "--resume"]).await.unwrap_err();
        assert!(refused.to_string().contains("another replay is at work"), "{refused}");
        eventually("it counts as dead", SOON, async || {
            let refused =
                operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap_err().to_string();
            if refused.contains("was broken off") { Ok(()) } else { Err(refused) }
        })
        .await;
        edge.send(3, &click(&format!("live-{step}"))).await;
    }
    operate(&isolated, command).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    assert!(watch.await.unwrap() > 10);
    all_done(&isolated).await;
    let report = assert_equal(&isolated).await;
    assert_eq!(report.generation, 2);
    counted(&isolated, "SELECT count() FROM clicks_2 WHERE startsWith(click_id, 'live-')", 4).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_the_log_has_lost_is_refused_with_where_the_log_begins() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start(&isolated).await;
    edge.send_many("click", 60).await;
    all_done(&isolated).await;
    processor.stop().await;
    let nothing = operate(&isolated, &["replay", "--from", "2099-01-01T00:00:00Z"]).await.unwrap_err();
    assert!(nothing.to_string().contains("nothing to replay"), "{nothing}");

    let admin: rdkafka::admin::AdminClient<_> = isolated.kafka().create().unwrap();
    let mut cut = rdkafka::TopicPartitionList::new();
    let clicks = isolated.topic(topic::CLICKS);
    cut.add_partition_offset(&clicks, 3, rdkafka::Offset::Offset(4)).unwrap();
    admin.delete_records(&cut, &rdkafka::admin::AdminOptions::new()).await.unwrap();
    for range in [&["--offsets", "3:2-9"][..], &["--from", "2026-01-01T00:00:00Z"]] {
        let refused = operate(&isolated, &[&["replay"], range].concat()).await.unwrap_err().to_string();
        assert!(refused.contains("partition 3 begins at offset 4, 20"), "{refused}");
    }
    assert_eq!(isolated.clickhouse("SELECT count() FROM rebuilds").await.trim(), "0");
    operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    assert_equal(&isolated).await;
    assert_eq!(isolated.clickhouse("SELECT count() FROM clicks_2").await.trim(), "60");
}
