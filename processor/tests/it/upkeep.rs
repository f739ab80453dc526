//! Upkeep closes slices, purges deleted links and removes old rows.

use std::time::Duration;

use chrono::{Days, NaiveDate, TimeDelta, Utc};
use processor::Config;
use processor::clickhouse::Store;
use processor::upkeep::UpkeepStore;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use schemas::clickhouse::rollup::{Run, Scope, is_active};
use schemas::id::LinkId;
use schemas::message::{DeletedLink, LinkRecord, Message as _, Version};
use schemas::row::{ClickRow, UPKEEP};
use schemas::topic::{self, Topic};
use tests::engines::{Isolated, isolated};
use tests::proxy::{Moment, Proxy, SLICES};
use tests::{PATIENCE, eventually, metric};

use crate::adopt_topic::FORMER;
use crate::clicks::{Edge, click, counted, present};
use crate::conversions::{conversion, convert};
use crate::processor::{Processor, config};
use crate::rollups::{assert_rollups, link, random_clicks, recent_month, store, workspace};

/// A configuration with short upkeep intervals.
pub(crate) fn eager(isolated: &Isolated) -> Config {
    Config {
        upkeep_look: Duration::from_millis(200),
        purge_seconds: 1,
        read_on: Duration::from_secs(1),
        ..config(isolated)
    }
}

pub(crate) fn yesterday() -> NaiveDate {
    Utc::now().date_naive().pred_opt().unwrap()
}

/// Waits until all slices up to yesterday's are closed.
///
/// A slice can be closed when all partitions are ten minutes past it.
pub(crate) async fn all_closed(isolated: &Isolated) -> NaiveDate {
    let mut closed = yesterday();
    // Each slice takes a dozen statements that sync to disk.
    eventually("all slices are closed", async || {
        closed = (Utc::now() - TimeDelta::minutes(11)).date_naive().pred_opt().unwrap();
        let last = "SELECT toString(max(slice)) FROM slices WHERE toUInt128(workspace_id) = 0";
        let last = isolated.clickhouse(last).await.trim().to_owned();
        if last == closed.to_string() { Ok(()) } else { Err(last) }
    })
    .await;
    closed
}

fn processors_store(isolated: &Isolated) -> Store {
    Store::new(service::clickhouse::Clickhouse::new(&config(isolated).clickhouse), "test".to_owned())
}

/// Runs the first statements of a run under its own epoch, as a process does that is killed after them.
async fn interrupted(isolated: &Isolated, scope: Scope, slices: &[NaiveDate], statements: usize) -> usize {
    let version = processors_store(isolated).raise_epoch(UPKEEP).await.unwrap();
    let blocks = UpkeepStore::new(service::clickhouse::Clickhouse::new(&config(isolated).clickhouse))
        .last_blocks()
        .await
        .unwrap();
    let slices = slices.iter().map(|slice| (*slice, blocks.get(slice).copied().unwrap_or(-1)));
    let run = Run { scope, version, slices: slices.collect() };
    let all = run.statements();
    for statement in all.iter().take(statements) {
        isolated.clickhouse(statement).await;
    }
    all.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollups_of_closed_slices_match_the_raw_rows() {
    let isolated = isolated().await;
    let first = recent_month(Utc::now().date_naive()).checked_sub_days(Days::new(3)).unwrap();
    let rows = random_clicks(first, 7, 4_000);
    store(&isolated, &rows).await;
    let processor = Processor::start_with(eager(&isolated)).await;
    let closed = all_closed(&isolated).await;
    assert_rollups(&isolated, &rows, closed).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_stays_open_until_its_delay_has_passed() {
    let isolated = isolated().await;
    let yesterday = yesterday();
    store(&isolated, &random_clicks(yesterday, 1, 10)).await;
    // The delay after the slice has not passed for any partition.
    let patient = Config { slice_delay_seconds: 40 * 3_600, ..eager(&isolated) };
    let processor = Processor::start_with(patient).await;
    let rounds = format!("SELECT count() > 0 FROM progress WHERE as_of > {}", present());
    counted(&isolated, &rounds, 1).await;
    // A round that purges has already looked for slices to close.
    delete_link(&isolated, link(99)).await;
    counted(&isolated, "SELECT count() FROM purges", 1).await;
    processor.stop().await;
    assert_eq!(isolated.clickhouse("SELECT count() FROM slices").await.trim(), "0");
    assert_eq!(isolated.clickhouse("SELECT count() FROM counts").await.trim(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_stays_open_while_one_partition_is_behind() {
    let isolated = isolated().await;
    // Not yesterday's, which stays open for the first minutes of a day.
    let slice = yesterday().pred_opt().unwrap();
    store(&isolated, &random_clicks(slice, 1, 10)).await;
    // Partition 3 is counted up to three days ago, and its log is rejected until this source is removed.
    isolated.clickhouse(&FORMER.replace("65536", "65539")).await;
    isolated.clickhouse("INSERT INTO progress SELECT 65539, now64(3) - INTERVAL 3 DAY").await;
    Edge::new(&isolated).send(3, &click("behind")).await;
    let processor = Processor::start_with(eager(&isolated)).await;
    let others = format!("SELECT uniqExact(src) FROM progress WHERE as_of > {}", present());
    counted(&isolated, &others, 5).await;
    // The second purge is of a round that began after the others were counted, and has looked for slices to close.
    for (purges, gone) in [(1, 98), (2, 99)] {
        delete_link(&isolated, link(gone)).await;
        counted(&isolated, "SELECT count() FROM purges", purges).await;
    }
    assert_eq!(isolated.clickhouse("SELECT count() FROM slices").await.trim(), "0");
    isolated.clickhouse("DELETE FROM sources WHERE reason = 'test'").await;
    all_closed(&isolated).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_killed_run_are_not_counted_and_are_removed() {
    let isolated = isolated().await;
    // A slice that folds a month has the most statements.
    let slice = recent_month(Utc::now().date_naive()).pred_opt().unwrap();
    let rows = random_clicks(slice, 1, 500);
    store(&isolated, &rows).await;
    let statements = interrupted(&isolated, Scope::All, &[slice], 0).await;
    assert_eq!(statements, 23);
    for killed_after in 1..statements {
        interrupted(&isolated, Scope::All, &[slice], killed_after).await;
        let rows = "SELECT count() FROM slices";
        assert_eq!(isolated.clickhouse(rows).await.trim(), "0", "killed after {killed_after}");
    }
    let processor = Processor::start_with(eager(&isolated)).await;
    let closed = all_closed(&isolated).await;
    assert_rollups(&isolated, &rows, closed).await;
    let former_are_removed = async || {
        for table in ["counts", "breakdowns"] {
            let former = format!("SELECT count() FROM {table} WHERE NOT ({})", is_active());
            counted(&isolated, &former, 0).await;
        }
    };
    former_are_removed().await;
    assert_rollups(&isolated, &rows, closed).await;

    // The same for a purge: active rollups stay active until its last statement.
    for killed_after in [1, 11, 22] {
        interrupted(&isolated, Scope::Workspace(workspace(1)), &[slice], killed_after).await;
        assert_rollups(&isolated, &rows, closed).await;
    }
    // Another process, such as an operator's command, finishes a run.
    interrupted(&isolated, Scope::Workspace(workspace(1)), &[slice], statements).await;
    former_are_removed().await;
    assert_rollups(&isolated, &rows, closed).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_is_closed_after_a_lost_statement_or_answer() {
    for moment in [Moment::Answered, Moment::Half] {
        let isolated = isolated().await;
        // Not yesterday: in the first minutes of a day it is not closed yet.
        let first = yesterday().checked_sub_days(Days::new(3)).unwrap();
        let rows = random_clicks(first, 3, 300);
        store(&isolated, &rows).await;
        let proxy = Proxy::start(&isolated).await;
        let config = eager(&proxy.before(&isolated));
        let breaking = tokio::spawn(async move {
            for _ in 0..2 {
                proxy.break_next(SLICES, moment).await;
            }
        });
        let processor = Processor::start_with(config).await;
        breaking.await.unwrap();
        let closed = all_closed(&isolated).await;
        assert_rollups(&isolated, &rows, closed).await;
        processor.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_upkeep_owners_close_no_slice_twice() {
    let isolated = isolated().await;
    let first = yesterday().checked_sub_days(Days::new(12)).unwrap();
    let rows = random_clicks(first, 12, 3_000);
    store(&isolated, &rows).await;
    // Two groups are independent, so upkeep runs in both.
    let one = Processor::start_with(eager(&isolated)).await;
    let rival = Config { group: "rival", ..eager(&isolated) };
    let rival = Processor::start_with(rival).await;
    let closed = all_closed(&isolated).await;
    let owners = format!("SELECT uniqExact(owner) FROM owners WHERE src = {UPKEEP}");
    counted(&isolated, &owners, 2).await;
    assert_rollups(&isolated, &rows, closed).await;
    let closings = "SELECT count() = uniqExact(slice) FROM slices";
    assert_eq!(isolated.clickhouse(closings).await.trim(), "1", "each slice was closed once");
    one.stop().await;
    rival.stop().await;
}

pub(crate) async fn write(isolated: &Isolated, topic: Topic, key: &str, value: &[u8]) {
    let producer: FutureProducer = isolated.kafka().create().unwrap();
    let topic = isolated.topic(topic);
    let record = FutureRecord::to(&topic).partition(0).key(key).payload(value);
    producer.send(record, Timeout::After(PATIENCE)).await.unwrap();
}

/// Writes the deletion of a link to the topic of links.
pub(crate) async fn delete_link(isolated: &Isolated, link: LinkId) {
    let deleted =
        DeletedLink { version: Version, id: link, revision: 9, workspace_id: None, deleted_at: Utc::now() };
    write(isolated, topic::LINKS, &link.to_string(), &LinkRecord::Deleted(deleted).encode()).await;
}

async fn rows_of(isolated: &Isolated, link: LinkId) -> String {
    let of_link = format!("link_id = toUUID('{}')", link.uuid());
    let count = |table: &str| format!("(SELECT count() FROM {table} WHERE {of_link})");
    let tables =
        ["clicks", "counts", "breakdowns", "conversions", "waiting_conversions"].map(count).join(", ");
    isolated.clickhouse(&format!("SELECT {tables}")).await.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_deleted_link_are_purged_from_every_table() {
    let isolated = isolated().await;
    let first = recent_month(Utc::now().date_naive()).checked_sub_days(Days::new(3)).unwrap();
    let rows = random_clicks(first, 7, 2_000);
    store(&isolated, &rows).await;
    let gone = link(11);
    let of_gone = |row: &&ClickRow| row.click.link_id == gone;
    let converted = rows.iter().find(of_gone).unwrap();
    convert(&isolated, &conversion(converted)).await;
    // Shorter than the purge takes.
    let read_on = Duration::from_millis(50);
    let processor = Processor::start_with(Config { read_on, ..eager(&isolated) }).await;
    let closed = all_closed(&isolated).await;
    assert_rollups(&isolated, &rows, closed).await;
    counted(&isolated, "SELECT count() FROM conversions FINAL", 1).await;

    delete_link(&isolated, gone).await;
    eventually("the link's rows are gone", async || {
        let found = rows_of(&isolated, gone).await;
        if found == "0\t0\t0\t0\t0" { Ok(()) } else { Err(found) }
    })
    .await;
    let left: Vec<ClickRow> = rows.iter().filter(|row| !of_gone(row)).cloned().collect();
    assert!(left.len() < rows.len());
    // No row of the workspace contains the link's visitors, not even an inactive one.
    counted(&isolated, "SELECT count() FROM purges", 1).await;
    assert_rollups(&isolated, &left, closed).await;
    let orphaned = format!("SELECT count() FROM counts WHERE NOT ({})", is_active());
    counted(&isolated, &orphaned, 0).await;

    // The lane drops a click that was in flight, and one that a replay reads.
    let edge = Edge::new(&isolated);
    let mut late = click("late");
    (late.link_id, late.workspace_id) = (gone, converted.click.workspace_id);
    edge.send(0, &late).await;
    edge.send(0, &click("last")).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'last'", 1).await;
    assert_eq!(rows_of(&isolated, gone).await, "0\t0\t0\t0\t0");
    // A late conversion of the deleted link is not stored, and the next one is.
    convert(&isolated, &conversion(converted)).await;
    convert(&isolated, &conversion(&left[0])).await;
    counted(&isolated, "SELECT count() FROM conversions FINAL", 1).await;
    assert_eq!(rows_of(&isolated, gone).await, "0\t0\t0\t0\t0");
    // A click that was stored before the lane knew of the deletion is purged too.
    let mut slipped = converted.clone();
    (slipped.koff, slipped.broker_ts) = (9_999_999, Utc::now());
    store(&isolated, &[slipped]).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE koff = 9999999", 0).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_slice_is_closed_again_after_a_purge() {
    let isolated = isolated().await;
    // The last day of a month contains the whole month, so the slice before it is in two rollups.
    let last = recent_month(Utc::now().date_naive()).pred_opt().unwrap();
    let day = last.pred_opt().unwrap();
    let mut rows = random_clicks(day, 2, 1_000);
    store(&isolated, &rows).await;
    let config = Config { read_on: Duration::from_secs(3_600), ..eager(&isolated) };
    let processor = Processor::start_with(config).await;
    let closed = all_closed(&isolated).await;
    delete_link(&isolated, link(11)).await;
    counted(&isolated, "SELECT count() FROM purges", 1).await;
    rows.retain(|row| row.click.link_id != link(11));
    assert_rollups(&isolated, &rows, closed).await;
    // A report can finish reading the versions that it began with.
    let workspaces = "SELECT version, sum(clicks) FROM counts WHERE toUInt128(link_id) = 0 GROUP BY version \
        ORDER BY version";
    let before = isolated.clickhouse(workspaces).await;

    let mut late = rows.iter().find(|row| row.broker_ts.date_naive() == day).unwrap().clone();
    (late.koff, late.click.click_id) = (9_999_999, "late".to_owned());
    store(&isolated, &[late.clone()]).await;
    rows.push(late);
    eventually("the slice is closed again", async || {
        let versions = isolated.clickhouse(workspaces).await;
        let active = "SELECT uniqExact(version) FROM slices WHERE toUInt128(workspace_id) = 0 GROUP BY slice \
                      HAVING uniqExact(version) > 1";
        let again = isolated.clickhouse(active).await;
        if again == "2\n2\n" && versions.starts_with(&before) { Ok(()) } else { Err((again, versions)) }
    })
    .await;
    assert_rollups(&isolated, &rows, closed).await;
    eventually("it is counted", async || {
        match metric(&processor.operations, "hopline_processor_slices_closed_again_total").await {
            0.0 => Err(0),
            _ => Ok(()),
        }
    })
    .await;
    processor.stop().await;

    // Rollups that no query can read any more are removed.
    let processor = Processor::start_with(eager(&isolated)).await;
    for table in ["counts", "breakdowns"] {
        counted(&isolated, &format!("SELECT count() FROM {table} WHERE NOT ({})", is_active()), 0).await;
    }
    assert_rollups(&isolated, &rows, closed).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_removed_a_month_after_their_plan_hides_them() {
    let isolated = isolated().await;
    let today = Utc::now().date_naive();
    let day = |days: u64| today.checked_sub_days(Days::new(days)).unwrap();
    let ages = [1, 59, 95, 370, 430, 900];
    let mut rows = Vec::new();
    for (number, age) in ages.iter().enumerate() {
        let mut clicks = random_clicks(day(*age), 1, 300);
        // Not late, so that age and slice are the same for all tables.
        for row in &mut clicks {
            row.click.occurred_at = row.broker_ts;
            row.koff += 1_000 * number as u64;
        }
        store(&isolated, &clicks).await;
        rows.extend(clicks);
    }
    let slices: Vec<NaiveDate> = ages.iter().map(|age| day(*age)).collect();
    interrupted(&isolated, Scope::All, &slices, usize::MAX).await;
    // Workspace 0 shows 30 days, 1 showed 365 until lately, and workspace 2 has no row.
    for (number, days, ago) in [(0, 30, 0), (1, 365, 20), (1, 30, 0)] {
        let workspace = workspace(number).uuid();
        let insert =
            format!("INSERT INTO retention VALUES ('{workspace}', {days}, now64(3) - {ago} * 86400)");
        isolated.clickhouse(&insert).await;
    }
    let months_first = |days: u64| chrono::Datelike::with_day(&day(days), 1).unwrap();
    let (short, long) = (months_first(60), months_first(395));
    let is_kept = |row: &ClickRow| {
        let slice = row.broker_ts.date_naive();
        slice >= if row.click.workspace_id == workspace(0) { short } else { long }
    };
    let kept: Vec<ClickRow> = rows.iter().filter(|row| is_kept(row)).cloned().collect();
    assert!(kept.len() < rows.len());
    let processor = Processor::start_with(eager(&isolated)).await;
    let all = "SELECT count() FROM clicks WHERE NOT startsWith(click_id, 'sent')".to_owned();
    counted(&isolated, &all, kept.len()).await;
    for (table, time) in [("counts", "slice"), ("breakdowns", "slice"), ("clicks", "toDate(broker_ts)")] {
        let old = format!(
            "SELECT countIf({time} < if(workspace_id = toUUID('{}'), toDate('{short}'), \
                toDate('{long}'))) FROM {table}",
            workspace(0).uuid()
        );
        counted(&isolated, &old, 0).await;
    }
    let raw = "SELECT count() FROM clicks";
    assert_eq!(isolated.clickhouse(raw).await.trim(), kept.len().to_string());
    let masked = "SELECT count() FROM system.parts WHERE database = currentDatabase() AND active \
                  AND has_lightweight_delete";
    counted(&isolated, masked, 0).await;
    let by_hour = "SELECT sum(clicks) FROM counts WHERE unit = 'hour' AND toUInt128(link_id) = 0";
    assert_eq!(isolated.clickhouse(by_hour).await.trim(), kept.len().to_string());
    processor.stop().await;
}
