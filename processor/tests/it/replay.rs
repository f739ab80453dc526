//! A replay restores lost rows and changes no count, even if it is killed.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use chrono::{DateTime, Days, NaiveDate, TimeDelta, Utc};
use processor::operate::audit::audit;
use schemas::topic;
use serde_json::json;
use tests::engines::{Isolated, isolated_with_given_times};
use tests::eventually;
use tests::processor::{Step, kill_at};
use tests::proxy::{Fate, Moment, Proxy};
use tests::signals::{freeze, wake};
use tokio::process::Child;
use tokio::task::JoinHandle;

use crate::audit::assert_equal;
use crate::clicks::{Edge, again, click, counted, wait_until_processed};
use crate::processor::{Processor, config, operate, program};
use crate::rollups::{link, random_clicks, recent_month, store};
use crate::upkeep::{all_closed, delete_link, eager};

/// Makes the slices look as if they had been closed two hours ago.
pub(crate) async fn two_hours_pass(isolated: &Isolated) {
    isolated.clickhouse("ALTER TABLE slices UPDATE at = at - 7200 WHERE 1 SETTINGS mutations_sync = 1").await;
}

/// Returns two consecutive past days by the broker's clock, the same at each call: a test may run past midnight.
pub(crate) fn two_days() -> [NaiveDate; 2] {
    static TODAY: LazyLock<NaiveDate> = LazyLock::new(|| Utc::now().date_naive());
    [5, 4].map(|ago| TODAY.checked_sub_days(Days::new(ago)).unwrap())
}

/// Returns a time of a day.
pub(crate) fn moment(day: NaiveDate, minute: i64) -> DateTime<Utc> {
    day.and_time(chrono::NaiveTime::MIN).and_utc() + TimeDelta::minutes(minute)
}

/// Stores 600 clicks of closed slices that the log no longer holds. Writes 240 clicks of two closed days and 60 of
/// today to the log, with repeats and invalid records. Slices were closed two hours ago.
async fn counted_clicks(isolated: &Isolated, edge: &Edge<'_>) {
    let first = recent_month(Utc::now().date_naive()).pred_opt().unwrap();
    store(isolated, &random_clicks(first, 4, 600)).await;
    for (number, day) in two_days().into_iter().enumerate() {
        for minute in 0..120 {
            let (partition, at) = (minute as i32 % 6, moment(day, minute * 12));
            let click = click(&format!("day-{number}-{minute}"));
            edge.send_at(partition, &click, at).await;
            if minute % 7 == 0 {
                // The last repeats of a day arrive on the next day.
                edge.send_at(partition, &again(&click), at + TimeDelta::minutes(30)).await;
            }
        }
    }
    for number in 0..60 {
        let click = click(&format!("sent-{number}"));
        edge.send(number % 6, &click).await;
        if number % 7 == 0 {
            edge.send(number % 6, &again(&click)).await;
        }
    }
    edge.write(2, b"no click", None).await;
    wait_until_processed(isolated).await;
    all_closed(isolated).await;
    two_hours_pass(isolated).await;
}

/// Repeats the count queries until `stop` is set.
///
/// The counts of [`counted_clicks`] must never change, and those of live clicks must never decrease.
pub(crate) fn watch(isolated: &Isolated, stop: &Arc<AtomicBool>) -> JoinHandle<usize> {
    let (isolated, stop) = (isolated.clone(), Arc::clone(stop));
    tokio::spawn(async move {
        let (mut rounds, mut live) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            let counts = isolated
                .clickhouse(
                    "SELECT countIf(NOT startsWith(click_id, 'live-')), \
                     uniqExactIf(click_id, NOT startsWith(click_id, 'live-')), \
                     countIf(startsWith(click_id, 'live-')), uniqExactIf(click_id, startsWith(click_id, 'live-')) \
                     FROM clicks",
                )
                .await;
            let counts: Vec<u64> = counts.split_whitespace().map(|count| count.parse().unwrap()).collect();
            assert_eq!(counts[..2], [900, 900]);
            assert_eq!(counts[2], counts[3]);
            assert!(counts[2] >= live, "{} after {live}", counts[2]);
            live = counts[2];
            rounds += 1;
        }
        rounds
    })
}

async fn staging_tables(isolated: &Isolated) -> String {
    let sql =
        "SELECT count() FROM system.tables WHERE database = currentDatabase() AND name LIKE '%staging%'";
    isolated.clickhouse(sql).await.trim().to_owned()
}

/// Removes rows that are not the last of their sources, because a processor continues after the last row.
async fn lose(isolated: &Isolated, condition: &str) {
    let last = isolated.clickhouse(
        "SELECT groupArray((src, last)) FROM (SELECT src, max(koff) AS last FROM clicks GROUP BY src)",
    );
    let last = last.await.replace('[', "(").replace(']', ")");
    isolated
        .clickhouse(&format!(
            "DELETE FROM clicks WHERE src < 131072 AND (src, koff) NOT IN {} AND {condition}",
            last.trim()
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_beside_live_clicks_changes_no_count() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    counted_clicks(&isolated, &edge).await;
    let before = assert_equal(&isolated).await;
    // A later day may be closed meanwhile.
    let until = before.closed_until.unwrap();
    let slices = format!("SELECT max(version) FROM slices WHERE slice < '{until}'");
    let version = isolated.clickhouse(&slices).await;

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
            assert_eq!((&dry["dry_run"], &dry["rebuilt"]), (&json!(true), &json!([])));
            let done = operate(&isolated, &[&["replay"], range].concat()).await.unwrap();
            assert_eq!(done["added"], 0, "{done}");
            let rebuilt: Vec<_> = done["rebuilt"].as_array().unwrap().iter().collect();
            let days: Vec<_> = rebuilt.iter().map(|day| day["day"].as_str().unwrap()).collect();
            for day in two_days() {
                assert!(days.contains(&&*day.to_string()), "{done}");
            }
            assert!(rebuilt.iter().all(|day| day["changed"] == false), "{done}");
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (sent, ()) = tokio::join!(live, replays);
    assert!(watch.await.unwrap() > 10);
    assert!(sent > 10);
    wait_until_processed(&isolated).await;
    let after = assert_equal(&isolated).await;
    assert!(after.closed_until >= before.closed_until, "{after}");
    assert_eq!(isolated.clickhouse(&slices).await, version, "no slice was closed again");
    let rows = "SELECT count(), uniqExact(click_id), uniqExact(src, koff) FROM clicks";
    let all = 900 + sent;
    assert_eq!(isolated.clickhouse(rows).await.trim(), format!("{all}\t{all}\t{all}"));
    assert_eq!(staging_tables(&isolated).await, "0");
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_restores_lost_rows_and_removes_doubled_rows() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    let mut gone = click("gone");
    gone.link_id = link(5);
    edge.send_at(1, &gone, moment(two_days()[0], 0)).await;
    counted_clicks(&isolated, &edge).await;
    let before = assert_equal(&isolated).await;
    delete_link(&isolated, link(5)).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'gone'", 0).await;
    processor.stop().await;
    lose(&isolated, "1").await;
    // The log decides which of two rows of a click is correct.
    let day = two_days()[1];
    isolated
        .clickhouse(&format!(
            "INSERT INTO clicks SELECT * FROM clicks WHERE toDate(broker_ts) = '{day}' LIMIT 3"
        ))
        .await;

    let done = operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    assert!(done["added"].as_u64().unwrap() > 40, "{done}");
    let report = assert_equal(&isolated).await;
    assert_eq!(report.sources.iter().map(|source| source.rows).sum::<u64>(), 300);
    assert_eq!(report.sources[1].deleted, 1);
    assert_eq!(report.classes["human"].rows, before.classes["human"].rows - 1);
    assert_eq!(isolated.clickhouse("SELECT count() FROM clicks WHERE click_id = 'gone'").await.trim(), "0");

    // When the tables are empty, the next owners count everything that the log has.
    for table in ["clicks", "counts", "breakdowns", "slices"] {
        isolated.clickhouse(&format!("TRUNCATE TABLE {table}")).await;
    }
    let processor = Processor::start_with(eager(&isolated)).await;
    counted(&isolated, "SELECT count() FROM clicks", 300).await;
    edge.send(0, &click("last")).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'last'", 1).await;
    all_closed(&isolated).await;
    // The progress of the lost rows stayed, so upkeep may have closed a day before all of its rows were back. It closes
    // such a day again.
    eventually("the rollups have every row", async || {
        let report = audit(&config(&isolated)).await.map_err(|error| format!("{error:#}"))?;
        if report.equal { Ok(()) } else { Err(report.to_string()) }
    })
    .await;
    processor.stop().await;
    assert_equal(&isolated).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replays_at_once_change_no_count() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    counted_clicks(&isolated, &edge).await;
    lose(&isolated, "koff % 3 = 0").await;
    let replay = async || operate(&isolated, &["replay", "--from", "earliest"]).await;
    let (one, other) = tokio::join!(replay(), replay());
    assert!(one.is_ok() || other.is_ok(), "{one:?}, {other:?}");
    let rows = "SELECT count(), uniqExact(click_id) FROM clicks";
    assert_eq!(isolated.clickhouse(rows).await.trim(), "900\t900");
    assert_equal(&isolated).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_first_copy_does_not_count_twice() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    let [day, next] = two_days();
    let (closed, open) = (click("closed"), click("open"));
    edge.send_at(1, &closed, moment(day, 60)).await;
    edge.send(1, &open).await;
    wait_until_processed(&isolated).await;
    isolated.clickhouse("DELETE FROM clicks WHERE click_id IN ('closed', 'open')").await;
    edge.send_at(1, &again(&closed), moment(next, 60)).await;
    edge.send(1, &again(&open)).await;
    let all = "SELECT koff, click_id, again FROM clicks ORDER BY koff";
    let repeats = "2\tclosed\ttrue\n3\topen\ttrue";
    counted(&isolated, all, repeats).await;
    wait_until_processed(&isolated).await;
    all_closed(&isolated).await;
    // Upkeep may have closed the day before its row was deleted.
    operate(&isolated, &["close-again", &day.to_string()]).await.unwrap();
    two_hours_pass(&isolated).await;

    operate(&isolated, &["replay", "--offsets", "1:0-2"]).await.unwrap();
    assert_eq!(isolated.clickhouse(all).await.trim(), repeats);
    assert_equal(&isolated).await;
    operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    assert_eq!(isolated.clickhouse(all).await.trim(), repeats);
    assert_equal(&isolated).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_repeat_in_another_partition_does_not_count() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    let [day, _] = two_days();
    let (closed, open) = (click("closed"), click("open"));
    edge.send_at(1, &closed, moment(day, 60)).await;
    edge.send(1, &open).await;
    wait_until_processed(&isolated).await;
    // A replay reads partition 0 first.
    edge.send_at(0, &again(&closed), moment(day, 90)).await;
    edge.send(0, &again(&open)).await;
    edge.send(0, &click("last")).await;
    edge.send(1, &click("last-too")).await;
    wait_until_processed(&isolated).await;
    let all = "SELECT src % 65536, koff, click_id FROM clicks WHERE click_id NOT LIKE 'last%' ORDER BY koff";
    let stored = "1\t0\tclosed\n1\t1\topen";
    counted(&isolated, all, stored).await;
    all_closed(&isolated).await;

    isolated.clickhouse("DELETE FROM clicks WHERE click_id IN ('closed', 'open')").await;
    two_hours_pass(&isolated).await;
    operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    assert_eq!(isolated.clickhouse(all).await.trim(), stored);
    assert_equal(&isolated).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_replay_can_be_run_again() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    counted_clicks(&isolated, &edge).await;
    let steps = [Step::Begun, Step::Staged, Step::Replacing, Step::Replaced, Step::ReplacingSecond];
    for (round, step) in steps.into_iter().enumerate() {
        lose(&isolated, "koff % 2 = 1").await;
        kill_at(&isolated, step, program(&isolated, &["replay", "--from", "earliest"])).await;
        edge.send(3, &click(&format!("live-{round}"))).await;
        operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
        assert_eq!(staging_tables(&isolated).await, "0");
        counted(
            &isolated,
            "SELECT count(), uniqExact(click_id) FROM clicks",
            format!("{0}\t{0}", 901 + round),
        )
        .await;
        wait_until_processed(&isolated).await;
        assert_equal(&isolated).await;
    }
    processor.stop().await;
}

/// Starts a replay of everything, and freezes it when its staging table has the rows of the first day.
async fn frozen_replay(isolated: &Isolated) -> Child {
    let proxy = Proxy::start(isolated).await;
    // The first statement that checks the rows; its timeout is an hour.
    proxy.set(b"SELECT count() FROM clicks_staging_", Moment::Answered);
    let mut replay = program(&proxy.before(isolated), &["replay", "--from", "earliest"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    tokio::select! {
        () = proxy.holds() => {}
        ended = replay.wait() => panic!("the replay ended before it was frozen: {}", ended.unwrap()),
    }
    freeze(&replay);
    // The replay reads the answer after it wakes.
    proxy.release(Fate::GoesOn);
    replay
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_is_fenced_by_a_later_replay() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    counted_clicks(&isolated, &edge).await;
    lose(&isolated, "koff % 2 = 1").await;
    let frozen = frozen_replay(&isolated).await;
    operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    let rebuilds = isolated.clickhouse("SELECT count() FROM rebuilds").await;
    let before = assert_equal(&isolated).await;
    wake(&frozen);
    let fenced = frozen.wait_with_output().await.unwrap();
    let errors = String::from_utf8_lossy(&fenced.stderr);
    assert!(!fenced.status.success() && errors.contains("clicks_staging_"), "{errors}");
    assert_eq!(isolated.clickhouse("SELECT count() FROM rebuilds").await, rebuilds);
    assert_eq!(assert_equal(&isolated).await.classes, before.classes);
    assert_eq!(staging_tables(&isolated).await, "0");
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_purged_during_a_replay_does_not_come_back() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    counted_clicks(&isolated, &edge).await;
    let gone = click("any").link_id;
    lose(&isolated, "koff % 2 = 1").await;
    let frozen = frozen_replay(&isolated).await;
    let of_gone = format!("SELECT count() FROM clicks WHERE link_id = toUUID('{}')", gone.uuid());
    delete_link(&isolated, gone).await;
    counted(&isolated, &of_gone, 0).await;
    counted(&isolated, "SELECT count() FROM purges", 1).await;
    wake(&frozen);
    let ended = frozen.wait_with_output().await.unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(isolated.clickhouse(&of_gone).await.trim(), "0");
    let report = assert_equal(&isolated).await;
    assert_eq!(report.classes.values().map(|class| class.counted).sum::<u64>(), 600, "{report}");
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_before_the_start_of_the_log_is_rejected() {
    let isolated = isolated_with_given_times().await;
    let began = Utc::now().date_naive();
    let edge = Edge::new(&isolated);
    let processor = Processor::start(&isolated).await;
    edge.send_many("click", 60).await;
    wait_until_processed(&isolated).await;
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
    let done = operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    let ended = Utc::now().date_naive();
    let open_days = [json!([began]), json!([ended]), json!([began, ended])];
    assert!(open_days.contains(&done["open_days"]), "{done}");
    assert_eq!(done["added"], 0, "{done}");
    assert_equal(&isolated).await;
    assert_eq!(isolated.clickhouse("SELECT count() FROM clicks").await.trim(), "60");
}
