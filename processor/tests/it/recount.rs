//! A recount changes only what is derived from User-Agents and referrers, even if it is killed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::Utc;
use processor::operate::audit::audit;
use processor::operate::audit::report::Kind;
use schemas::message::{Class, Click};
use serde_json::{Value, json};
use service::agent;
use tests::engines::{Isolated, isolated_with_given_times};
use tests::processor::{Step, kill_at};

use crate::audit::assert_equal;
use crate::clicks::{Edge, again, click, counted, wait_until_processed};
use crate::processor::{Processor, config, operate, program};
use crate::replay::{moment, two_days, two_hours_pass, watch};
use crate::rollups::{link, random_clicks, recent_month, store};
use crate::upkeep::{all_closed, delete_link, eager};

/// A folder with lists that classify every Firefox as a crawler and name no browser. Removed on drop.
struct Lists(PathBuf);

impl Lists {
    fn new(isolated: &Isolated) -> Self {
        let folder = std::env::temp_dir().join(format!("hopline-{}lists", isolated.topic_prefix));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("crawler-user-agents.json"), r#"[{"pattern": "Firefox"}]"#).unwrap();
        let none = r#"{"user_agent_parsers": [], "os_parsers": []}"#;
        std::fs::write(folder.join("uap-core.json"), none).unwrap();
        Self(folder)
    }

    /// Returns the command line of a command with these lists.
    fn with<'a>(&'a self, command: &[&'a str]) -> Vec<&'a str> {
        [&["--data-dir", self.0.to_str().unwrap()], command].concat()
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const FIREFOX: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";
const CHROME: &str = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) \
    Chrome/140.0.0.0 Safari/537.36";

/// A person's click with this User-Agent.
fn by(id: &str, user_agent: Option<&str>) -> Click {
    Click { user_agent: user_agent.map(str::to_owned), purpose: None, ..click(id) }
}

/// Stores 600 clicks of closed slices that the log no longer holds. Writes 300 clicks of two closed days to the log,
/// from two browsers and without a User-Agent. The slices were closed two hours ago.
async fn counted_clicks(isolated: &Isolated, edge: &Edge<'_>) {
    let first = recent_month(Utc::now().date_naive()).pred_opt().unwrap();
    store(isolated, &random_clicks(first, 4, 600)).await;
    let days = two_days();
    for number in 0..300 {
        let user_agent = [Some(FIREFOX), Some(CHROME), None][number % 3];
        let click = by(&format!("sent-{number}"), user_agent);
        let at = moment(days[number / 150], number as i64);
        edge.send_at(number as i32 % 6, &click, at).await;
        if number % 7 == 0 {
            edge.send_at(number as i32 % 6, &again(&click), at).await;
        }
    }
    edge.write(2, b"no click", None).await;
    wait_until_processed(isolated).await;
    all_closed(isolated).await;
    two_hours_pass(isolated).await;
}

/// Counts the human, bot and preview clicks whose ids have this prefix.
async fn classes(isolated: &Isolated, prefix: &str) -> String {
    let classes = ["human", "bot", "preview"].map(|class| format!("countIf(class = '{class}')")).join(", ");
    let sql = format!("SELECT {classes} FROM clicks WHERE startsWith(click_id, '{prefix}')");
    isolated.clickhouse(&sql).await.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recount_changes_classes_and_a_replay_keeps_them() {
    let isolated = isolated_with_given_times().await;
    let lists = Lists::new(&isolated);
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    let mut gone = by("gone", Some(FIREFOX));
    gone.link_id = link(5);
    edge.send_at(1, &gone, moment(two_days()[0], 0)).await;
    counted_clicks(&isolated, &edge).await;
    delete_link(&isolated, link(5)).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'gone'", 0).await;
    let before = assert_equal(&isolated).await;

    let refused = operate(&isolated, &["recount"]).await.unwrap_err().to_string();
    assert!(refused.contains("HOPLINE_DATA_DIR"), "{refused}");
    let dry = operate(&isolated, &lists.with(&["recount", "--dry-run"])).await.unwrap();
    let of_link = |of: &Click, was: &str| {
        let matches = |found: &&Value| found["link_id"] == of.link_id.to_string() && found["was"] == was;
        dry["differences"].as_array().unwrap().iter().find(matches).map(|found| found["clicks"].clone())
    };
    let becomes: Vec<_> =
        dry["differences"].as_array().unwrap().iter().map(|found| &found["becomes"]).collect();
    assert_eq!(of_link(&click("any"), "human"), Some(json!(100)), "{dry}");
    assert_eq!(of_link(&gone, "human"), None, "{dry}");
    // The clicks of closed slices were prefetches, so their class does not depend on the lists.
    assert!(becomes.contains(&&json!("preview")) && becomes.contains(&&json!("bot")), "{dry}");
    assert_eq!(dry["clicks"], 800, "every click with a User-Agent loses its browser's name");
    for table in ["recounts", "rebuilds"] {
        assert_eq!(isolated.clickhouse(&format!("SELECT count() FROM {table}")).await.trim(), "0");
    }

    let stop = Arc::new(AtomicBool::new(false));
    let watch = watch(&isolated, &stop);
    let began = Utc::now().date_naive();
    let live = async {
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            edge.send(sent % 6, &by(&format!("live-{sent}"), Some(FIREFOX))).await;
            sent += 1;
        }
        sent
    };
    let recount = async {
        counted(&isolated, "SELECT count() > 0 FROM clicks WHERE startsWith(click_id, 'live-')", 1).await;
        let done = operate(&isolated, &lists.with(&["recount"])).await.unwrap();
        let ended = Utc::now().date_naive();
        let open_days = [json!([began]), json!([ended]), json!([began, ended])];
        assert!(open_days.contains(&done["open_days"]), "{done}");
        stop.store(true, Ordering::Relaxed);
    };
    let (sent, ()) = tokio::join!(live, recount);
    assert!(watch.await.unwrap() > 10);
    wait_until_processed(&isolated).await;
    let report = assert_equal(&isolated).await;
    // A later day may have been closed meanwhile.
    assert!(report.closed_until >= before.closed_until, "{report}");
    assert_eq!(classes(&isolated, "sent-").await, "200\t100\t0");
    assert_eq!(classes(&isolated, "click-").await, "0\t0\t600");
    assert_eq!(isolated.clickhouse("SELECT count() FROM clicks WHERE click_id = 'gone'").await.trim(), "0");
    let rows = "SELECT count(), uniqExact(click_id), uniqExact(src, koff) FROM clicks";
    let all = 900 + sent;
    assert_eq!(isolated.clickhouse(rows).await.trim(), format!("{all}\t{all}\t{all}"));
    let changed: u64 = report.sources.iter().map(|source| source.reclassified).sum();
    assert!(changed >= 200, "{report}");
    // Clicks of the open day keep the class that their edge stored.
    assert_eq!(classes(&isolated, "live-").await, format!("{sent}\t0\t0"));

    // A replay reads the edges' classes from the log, and applies the recount to them.
    let replayed = operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    assert!(replayed["rebuilt"].as_array().unwrap().iter().all(|day| day["changed"] == false), "{replayed}");
    assert_equal(&isolated).await;
    assert_eq!(classes(&isolated, "sent-").await, "200\t100\t0");
    let nothing = operate(&isolated, &lists.with(&["recount"])).await.unwrap();
    assert_eq!((&nothing["clicks"], &nothing["days"]), (&json!(0), &json!([])));

    // The former rules restore the former classes.
    operate(&isolated, &["recount", "--built-in"]).await.unwrap();
    assert_equal(&isolated).await;
    assert_eq!(classes(&isolated, "sent-").await, "300\t0\t0");
    processor.stop().await;

    // The audit reports a class that was changed without a recount.
    let change =
        "ALTER TABLE clicks UPDATE class = 'preview' WHERE click_id = 'sent-3' SETTINGS mutations_sync = 1";
    isolated.clickhouse(change).await;
    let report = audit(&config(&isolated)).await.unwrap();
    assert_eq!(report.differences[0].kind, Kind::OtherRow, "{report}");
    assert!(report.differences[0].detail.contains("preview"), "{report}");
}

/// Referrers as older edges stored them, and their new values.
const REFERRERS: [(&str, &str); 10] = [
    ("www.news.example", "news.example"),
    ("www.www.news.example", "news.example"),
    ("www.news.co.uk", "news.co.uk"),
    ("www.com", "www.com"),
    ("www.", "www"),
    ("www.com.", "www.com"),
    ("WWW.News.Example.", "news.example"),
    ("com.Example.Mail", "com.example.mail"),
    ("wwww.example", "wwww.example"),
    ("", ""),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recount_gives_stored_referrers_their_one_spelling() {
    let isolated = isolated_with_given_times().await;
    let first = recent_month(Utc::now().date_naive()).pred_opt().unwrap();
    store(&isolated, &random_clicks(first, 4, 600)).await;
    // Rows of older edges; current edges do not write such referrers.
    let older = async |table: &str| {
        let names = REFERRERS.map(|(stored, _)| format!("'{stored}'")).join(", ");
        let value = format!("arrayElement([{names}], 1 + koff % {})", REFERRERS.len());
        let update =
            format!("ALTER TABLE {table} UPDATE referrer = {value} WHERE 1 SETTINGS mutations_sync = 1");
        isolated.clickhouse(&update).await;
    };
    let referrers = async |table: &str| {
        let sql =
            format!("SELECT DISTINCT koff % {} AS n, referrer FROM {table} ORDER BY n", REFERRERS.len());
        let rows = isolated.clickhouse(&sql).await;
        rows.lines().map(|row| row.split_once('\t').unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    older("clicks").await;
    let processor = Processor::start_with(eager(&isolated)).await;
    all_closed(&isolated).await;
    two_hours_pass(&isolated).await;
    assert_equal(&isolated).await;

    let dry = operate(&isolated, &["recount", "--built-in", "--dry-run"]).await.unwrap();
    assert_eq!(dry["referrers"], 600 * 7 / 10, "{dry}");
    operate(&isolated, &["recount", "--built-in"]).await.unwrap();
    assert_eq!(referrers("clicks").await, REFERRERS.map(|(_, becomes)| becomes));
    assert_equal(&isolated).await;
    let nothing = operate(&isolated, &["recount", "--built-in"]).await.unwrap();
    assert_eq!((&nothing["referrers"], &nothing["days"]), (&json!(0), &json!([])));

    // Different referrers alone cause a recount.
    older("clicks").await;
    let again = operate(&isolated, &["recount", "--built-in"]).await.unwrap();
    assert_eq!((&again["clicks"], &again["referrers"]), (&json!(0), &json!(420)), "{again}");
    assert_eq!(referrers("clicks").await, REFERRERS.map(|(_, becomes)| becomes));
    assert_equal(&isolated).await;
    processor.stop().await;
    for (stored, becomes) in REFERRERS {
        assert_eq!(schemas::referrer::normalize(stored), becomes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recount_keeps_the_class_of_a_mark_that_is_not_stored() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    let marks = [(agent::OVER_LIMIT, Class::Bot), (agent::BOT, Class::Bot), (agent::PREVIEW, Class::Preview)];
    for (number, (mark, class)) in (0..).zip(marks) {
        let click = by(&format!("marked-{number}"), Some(CHROME));
        let click = Click { class, purpose: Some(mark.to_owned()), ..click };
        edge.send_at(number, &click, moment(two_days()[0], number.into())).await;
    }
    wait_until_processed(&isolated).await;
    all_closed(&isolated).await;
    two_hours_pass(&isolated).await;
    // The fixture's browser is another one, so the rows are replaced.
    let done = operate(&isolated, &["recount", "--built-in"]).await.unwrap();
    assert_eq!((&done["clicks"], &done["differences"]), (&json!(3), &json!([])), "{done}");
    assert_eq!(classes(&isolated, "marked-").await, "0\t2\t1");
    assert_equal(&isolated).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_recount_can_be_run_again() {
    let isolated = isolated_with_given_times().await;
    let lists = Lists::new(&isolated);
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    counted_clicks(&isolated, &edge).await;
    let stop = Arc::new(AtomicBool::new(false));
    let watch = watch(&isolated, &stop);
    // No kill after the first day's rows are replaced: upkeep would close that slice, perhaps after the next recount.
    let steps = [Step::Begun, Step::Staged, Step::Replacing, Step::ReplacingSecond];
    for (round, step) in steps.into_iter().enumerate() {
        // To the new rules and back.
        let rules = if round % 2 == 0 { lists.with(&["recount"]) } else { vec!["recount", "--built-in"] };
        let becomes = if round % 2 == 0 { "200\t100\t0" } else { "300\t0\t0" };
        kill_at(&isolated, step, program(&isolated, &rules)).await;
        edge.send(3, &by(&format!("live-{round}"), Some(CHROME))).await;
        operate(&isolated, &rules).await.unwrap();
        assert_eq!(classes(&isolated, "sent-").await, becomes);
        wait_until_processed(&isolated).await;
        assert_equal(&isolated).await;
    }
    stop.store(true, Ordering::Relaxed);
    assert!(watch.await.unwrap() > 10);
    processor.stop().await;
}
