//! The audit accepts equal tables and reports each difference.

use std::collections::BTreeSet;
use std::process::Stdio;

use chrono::{Days, NaiveDate, Utc};
use processor::Config;
use processor::clickhouse::Store;
use processor::operate::audit::audit;
use processor::operate::audit::report::{Kind, Report};
use processor::pipeline::log::Log;
use processor::pipeline::ownership::Claim;
use schemas::clickhouse::rollup::{Run, Scope};
use schemas::message::Message as _;
use schemas::row::UPKEEP;
use schemas::topic;
use tests::engines::{Isolated, isolated, isolated_with_given_times};
use tests::{eventually, find_metric, metric};
use tokio_util::sync::CancellationToken;

use crate::clicks::{Edge, again, click, counted, counted_exactly, wait_until_processed};
use crate::processor::{Processor, config, operate, program};
use crate::rollups::{link, random_clicks, recent_month, store, workspace};
use crate::upkeep::{delete_link, eager};

/// Claims a partition without counting any of its clicks.
async fn begin_log(isolated: &Isolated, partition: i32) {
    let config = config(isolated);
    let store = Store::new(service::clickhouse::Clickhouse::new(&config.clickhouse), "test".to_owned());
    let log = Log::new(&config.kafka, &isolated.topic(topic::CLICKS), "test").unwrap();
    Claim::new(partition, store, log, CancellationToken::new()).take_over().await.unwrap();
}

/// Runs an audit, and checks that everything is equal and the log is counted to its end.
pub(crate) async fn assert_equal(isolated: &Isolated) -> Report {
    let report = audit(&config(isolated)).await.unwrap();
    assert!(report.equal, "{report}");
    assert_eq!(report.sources.iter().map(|source| source.behind).sum::<u64>(), 0, "{report}");
    for source in &report.sources {
        let parts = [source.rows, source.dead_letters, source.repeats, source.deleted, source.expired];
        assert_eq!(source.records, parts.iter().sum::<u64>(), "{report}");
    }
    report
}

/// Runs an audit that finds differences, and returns its report.
async fn differences(isolated: &Isolated) -> Report {
    let report = audit(&config(isolated)).await.unwrap();
    assert!(!report.equal && report.difference_count > 0, "{report}");
    report
}

/// Closes slices as upkeep does.
async fn close(isolated: &Isolated, slices: &[NaiveDate]) {
    let store =
        Store::new(service::clickhouse::Clickhouse::new(&config(isolated).clickhouse), "test".to_owned());
    let version = store.raise_epoch(UPKEEP).await.unwrap();
    let run = Run { scope: Scope::All, version, slices: slices.iter().map(|slice| (*slice, -1)).collect() };
    for statement in run.statements() {
        isolated.clickhouse(&statement).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeats_dead_letters_and_deletions_are_accepted() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    edge.send_many("click", 595).await;
    // Repeats of a stored click, in another batch and in the same batch; and a first copy that arrives second.
    let sent: Vec<_> = (0..5).map(|number| click(&format!("sent-{number}"))).collect();
    for (partition, click) in sent.iter().enumerate() {
        edge.send(partition as i32, click).await;
    }
    counted_exactly(&isolated, 600).await;
    for (partition, click) in sent.iter().enumerate() {
        edge.send(partition as i32, &again(click)).await;
    }
    let early = click("early");
    edge.send(0, &again(&early)).await;
    edge.send(0, &early).await;
    edge.write(2, b"no click", None).await;
    edge.write(3, b"", None).await;
    // Clicks of a deleted link: one before the deletion, one after it.
    let mut gone = click("gone");
    gone.link_id = link(77);
    edge.send(1, &gone).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'gone'", 1).await;
    delete_link(&isolated, link(77)).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'gone'", 0).await;
    edge.send(1, &gone).await;
    wait_until_processed(&isolated).await;

    let report = assert_equal(&isolated).await;
    let sum = |part: fn(&processor::operate::audit::report::Source) -> u64| {
        report.sources.iter().map(part).sum::<u64>()
    };
    assert_eq!(sum(|source| source.records), 611);
    assert_eq!(sum(|source| source.rows), 601);
    assert_eq!(sum(|source| source.repeats), 6);
    assert_eq!(sum(|source| source.dead_letters), 2);
    assert_eq!(sum(|source| source.deleted), 2);
    assert_eq!(report.classes["human"].rows, 601);
    processor.stop().await;
    assert_equal(&isolated).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncounted_records_are_not_differences() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    edge.send_many("click", 60).await;
    let report = audit(&config(&isolated)).await.unwrap();
    assert!(report.equal, "{report}");
    assert_eq!(report.sources.iter().map(|source| source.behind).sum::<u64>(), 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_doubled_changed_and_invented_rows_are_reported() {
    let isolated = isolated().await;
    let began = Utc::now();
    let edge = Edge::new(&isolated);
    let processor = Processor::start(&isolated).await;
    edge.send_many("click", 120).await;
    edge.send(0, &again(&click("marked"))).await;
    edge.write(5, b"no click", None).await;
    counted_exactly(&isolated, 121).await;
    wait_until_processed(&isolated).await;
    processor.stop().await;
    assert_equal(&isolated).await;
    let link = click("any").link_id;

    // One fault at a time, each repaired before the next.
    isolated.clickhouse("CREATE TABLE sound AS clicks").await;
    isolated.clickhouse("INSERT INTO sound SELECT * FROM clicks").await;
    for (fault, kind, src, offset) in [
        ("DELETE FROM clicks WHERE src = 65537 AND koff = 7", Kind::MissingRow, 65_537, 7),
        (
            "INSERT INTO clicks SELECT * FROM sound WHERE src = 65538 AND koff = 3",
            Kind::DoubledRow,
            65_538,
            3,
        ),
        (
            "INSERT INTO clicks SELECT * REPLACE (65541 AS src, 20 AS koff) \
             FROM (SELECT * FROM sound WHERE src = 65538 AND koff = 3)",
            Kind::RowWithoutRecord,
            65_541,
            20,
        ),
        (
            "ALTER TABLE clicks UPDATE visitor = 5 WHERE src = 65539 AND koff = 2 SETTINGS mutations_sync = 1",
            Kind::OtherRow,
            65_539,
            2,
        ),
        (
            "INSERT INTO clicks SELECT * REPLACE (131072 AS src, 4 AS koff) FROM sound WHERE click_id = 'marked'",
            Kind::DoubledClick,
            131_072,
            4,
        ),
    ] {
        isolated.clickhouse(fault).await;
        let report = differences(&isolated).await;
        let found = report.differences.iter().find(|difference| difference.kind == kind);
        let found = found.unwrap_or_else(|| panic!("{kind:?} was not found after {fault}: {report}"));
        assert_eq!((found.src, found.offset), (Some(src), Some(offset)), "{report}");
        assert_eq!(found.link_id, Some(link), "{report}");
        assert!([began, Utc::now()].map(|at| Some(at.date_naive())).contains(&found.day), "{report}");
        isolated.clickhouse("TRUNCATE TABLE clicks").await;
        isolated.clickhouse("INSERT INTO clicks SELECT * FROM sound").await;
        assert_equal(&isolated).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doubled_position_outside_the_log_is_reported() {
    let isolated = isolated().await;
    let rows = random_clicks(Utc::now().date_naive(), 1, 50);
    store(&isolated, &rows).await;
    assert_equal(&isolated).await;
    store(&isolated, &rows[7..8]).await;
    let report = differences(&isolated).await;
    let found = &report.differences[0];
    assert_eq!((found.kind, found.offset), (Kind::DoubledRow, Some(rows[7].koff)), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_rollup_is_reported() {
    let isolated = isolated().await;
    let first = recent_month(Utc::now().date_naive()).checked_sub_days(Days::new(3)).unwrap();
    let rows = random_clicks(first, 7, 2_000);
    store(&isolated, &rows).await;
    let slices: Vec<NaiveDate> = first.iter_days().take(7).collect();
    for slice in &slices {
        close(&isolated, &[*slice]).await;
    }
    let report = assert_equal(&isolated).await;
    assert_eq!(report.slices, 7);
    assert_eq!(report.closed_until, slices.last().unwrap().succ_opt());
    let total: u64 = report.classes.values().map(|totals| totals.counted).sum();
    assert_eq!(total, 2_000);

    for table in ["counts", "breakdowns"] {
        isolated.clickhouse(&format!("CREATE TABLE sound_{table} AS {table}")).await;
        isolated.clickhouse(&format!("INSERT INTO sound_{table} SELECT * FROM {table}")).await;
    }
    let wanted = format!("link_id = toUUID('{}')", link(12).uuid());
    let whole = "link_id = toUUID('00000000-0000-0000-0000-000000000000')";
    let update = |table: &str, unit: &str, of: &str, change: &str| {
        let settings = "SETTINGS mutations_sync = 1";
        format!("ALTER TABLE {table} UPDATE {change} WHERE unit = '{unit}' AND {of} {settings}")
    };
    for (table, fault) in [
        ("counts", update("counts", "hour", &wanted, "clicks = clicks + 1")),
        ("counts", update("counts", "month", &wanted, "clicks = clicks + 1")),
        ("counts", format!("DELETE FROM counts WHERE {wanted} AND unit = 'day'")),
        (
            "counts",
            update(
                "counts",
                "day",
                &wanted,
                "visitors = arrayReduce('uniqCombined64State(17)', [toUInt64(1)])",
            ),
        ),
        ("breakdowns", update("breakdowns", "day", &wanted, "clicks = clicks + 1")),
        ("breakdowns", update("breakdowns", "month", whole, "clicks = clicks + 5")),
    ] {
        isolated.clickhouse(&fault).await;
        let report = differences(&isolated).await;
        let found = report.differences.iter().find(|difference| difference.kind == Kind::Rollup);
        let found = found.unwrap_or_else(|| panic!("not found: {fault}: {report}"));
        if fault.contains(&wanted) {
            assert_eq!(found.link_id, Some(link(12)), "{report}");
            assert_eq!(found.workspace_id, Some(workspace(1)), "{report}");
        } else {
            assert_eq!(found.link_id, None, "{report}");
        }
        isolated.clickhouse(&format!("TRUNCATE TABLE {table}")).await;
        isolated.clickhouse(&format!("INSERT INTO {table} SELECT * FROM sound_{table}")).await;
        assert_equal(&isolated).await;
    }

    // The clicks are stored, so the rollups can be computed again.
    isolated.clickhouse(&update("breakdowns", "day", &wanted, "clicks = clicks + 1")).await;
    let days: BTreeSet<String> =
        differences(&isolated).await.differences.iter().map(|found| found.day.unwrap().to_string()).collect();
    let command: Vec<&str> = ["close-again"].into_iter().chain(days.iter().map(String::as_str)).collect();
    operate(&isolated, &command).await.unwrap();
    assert_equal(&isolated).await;
    let today = Utc::now().date_naive().to_string();
    let refused = operate(&isolated, &["close-again", &today]).await.unwrap_err().to_string();
    assert!(refused.contains("is not closed yet"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clicks_beyond_the_longest_window_are_expired() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let old = Utc::now().checked_sub_days(Days::new(200)).unwrap();
    eventually("the given time is kept", async || {
        let written = edge.write(0, &click("old").encode(), Some(old)).await;
        if written.timestamp == rdkafka::Timestamp::CreateTime(old.timestamp_millis()) {
            Ok(())
        } else {
            Err(())
        }
    })
    .await;
    edge.send(0, &click("now")).await;
    let processor = Processor::start(&isolated).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'now'", 1).await;
    wait_until_processed(&isolated).await;
    processor.stop().await;
    let records = assert_equal(&isolated).await.sources[0].rows;

    // A click of another workspace: clicks older than the longest window are removed in every workspace.
    let workspace = workspace(1).uuid();
    isolated.clickhouse(&format!("INSERT INTO retention VALUES ('{workspace}', 30, now64(3))")).await;
    let processor = Processor::start_with(eager(&isolated)).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE broker_ts < now() - 86400", 0).await;
    processor.stop().await;
    let report = assert_equal(&isolated).await;
    let source = &report.sources[0];
    assert!(source.expired > 0 && source.rows + source.expired == records, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_dead_letter_is_reported() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    edge.write(4, b"no click", None).await;
    edge.send(4, &click("behind")).await;
    // As a processor that skips a record would leave it.
    begin_log(&isolated, 4).await;
    let mut row = random_clicks(Utc::now().date_naive(), 1, 1).remove(0);
    let sent = tests::log::records(&isolated, topic::CLICKS);
    row.click = schemas::message::Click::decode(&sent[1].value).unwrap();
    row.broker_ts = chrono::DateTime::from_timestamp_millis(sent[1].timestamp).unwrap();
    (row.src, row.koff) = (65_540, 1);
    store(&isolated, &[row]).await;
    let report = differences(&isolated).await;
    let found = &report.differences[0];
    assert_eq!(
        (found.kind, found.src, found.offset),
        (Kind::MissingDeadLetter, Some(65_540), Some(0)),
        "{report}"
    );
    assert_eq!(report.difference_count, 1, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_prints_one_json_line_and_sets_the_exit_code() {
    let isolated = isolated().await;
    let rows = random_clicks(Utc::now().date_naive(), 1, 5);
    store(&isolated, &rows).await;
    let run = async |isolated: &Isolated| {
        let output = program(isolated, &["audit", "--json"]).output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = run(&isolated).await;
    assert_eq!((code, text.lines().count()), (Some(0), 1), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["equal"], &report["sources"][5]["partition"]), (&true.into(), &5.into()), "{text}");

    store(&isolated, &rows[..1]).await;
    let (code, text) = run(&isolated).await;
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &report["differences"][0]["kind"]), (Some(1), &"doubled_row".into()), "{text}");

    // No server listens at this address.
    let lost = Isolated { clickhouse_url: "http://127.0.0.1:1/none".to_owned(), ..isolated.clone() };
    assert_eq!(run(&lost).await, (Some(2), String::new()));
}

/// Waits until the processor exports the result of an audit with this number of differences.
async fn exported(processor: &Processor, differences: f64) -> f64 {
    eventually("the result of an audit is exported", async || {
        match find_metric(&processor.operations, "hopline_processor_audit_differences").await {
            Some(found) if found == differences => Ok(()),
            other => Err(other),
        }
    })
    .await;
    metric(&processor.operations, "hopline_processor_audit_timestamp_seconds").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_processor_audits_when_the_newest_result_is_old() {
    let isolated = isolated().await;
    let results = "SELECT count() FROM audits";
    let edge = Edge::new(&isolated);
    let auditing = || Config { audit_hours: 1, ..config(&isolated) };
    let processors = [Processor::start_with(auditing()).await, Processor::start_with(auditing()).await];
    counted(&isolated, results, 1).await;
    edge.send_many("click", 60).await;
    counted_exactly(&isolated, 60).await;
    for processor in processors {
        processor.stop().await;
    }
    assert_eq!(isolated.clickhouse(results).await.trim(), "1");

    // The newest result is two hours old, and a row was lost since.
    isolated.clickhouse("DELETE FROM clicks WHERE src = 65537 AND koff = 7").await;
    let aged = "INSERT INTO audits (ended_at, differences, report) SELECT now64(3) - 7200, 0, ''";
    for statement in ["TRUNCATE TABLE audits", aged] {
        isolated.clickhouse(statement).await;
    }
    let processor = Processor::start_with(auditing()).await;
    let found = exported(&processor, 1.0).await;
    assert_eq!(isolated.clickhouse(results).await.trim(), "2");
    let report = "SELECT JSONExtractString(report, 'differences', 1, 'kind') FROM audits \
        ORDER BY ended_at DESC LIMIT 1";
    assert_eq!(isolated.clickhouse(report).await.trim(), "missing_row");
    processor.stop().await;

    // A processor that takes over exports the stored result and waits for the next one.
    let processor = Processor::start_with(auditing()).await;
    assert_eq!(exported(&processor, 1.0).await, found);
    processor.stop().await;
    assert_eq!(isolated.clickhouse(results).await.trim(), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_audit_is_repeated_and_stores_no_result() {
    let isolated = isolated().await;
    isolated.clickhouse("RENAME TABLE recounts TO away").await;
    let processor = Processor::start_with(Config { audit_hours: 1, ..config(&isolated) }).await;
    eventually("an audit failed", async || {
        match metric(&processor.operations, "hopline_processor_audit_failures_total").await {
            0.0 => Err(0),
            _ => Ok(()),
        }
    })
    .await;
    assert_eq!(isolated.clickhouse("SELECT count() FROM audits").await.trim(), "0");
    isolated.clickhouse("RENAME TABLE away TO recounts").await;
    counted(&isolated, "SELECT count() FROM audits", 1).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_missing_or_forbidden_is_no_empty_one() {
    let isolated = isolated().await;
    // The processor's user has no rights to these topics.
    let mut forbidden = isolated.clone();
    forbidden.topic_prefix.insert_str(0, "forbidden.");
    isolated.remove_topics().await;
    for command in [&["lag"][..], &["dead-letters", "list"], &["replay", "--from", "earliest"], &["audit"]] {
        for (engines, reason) in
            [(&isolated, "there is no topic"), (&forbidden, "Topic authorization failed")]
        {
            let output = program(engines, command).stderr(Stdio::piped()).output().await.unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && errors.contains(reason), "{command:?}: {errors}");
        }
    }
}
