//! `bench queries`: what rollups cost and what they save, from a million clicks on one link to a hundred.
//!
//! The questions are requests to the API, one after the other, as people and programs send them: a key is looked up in
//! Postgres, and ClickHouse is asked for the rollups of closed slices and the raw rows of the day at hand.

use std::time::{Duration, Instant};

use ::tests::engines::{Isolated, isolated};
use anyhow::{Context as _, ensure};

use chrono::{Datelike as _, Days, NaiveDate, Utc};
use schemas::clickhouse::rollup::{Run, Scope};
use schemas::row::UPKEEP;
use serde::Serialize;
use serde_json::Value;
use service::clickhouse::{ClickhouseConfig, client};
use uuid::Uuid;

use crate::api::http::{self, Connection};
use crate::api::server::Server;
use crate::api::stage::{Stage, link};
use crate::prepare::{ENGINES, prepare};
use crate::statistics::percentile;
use crate::terminal::{complain, say};

/// The version of all slices: that of a processor which does the upkeep for a year, and so the common case.
const VERSION: u64 = 1;

/// Links, few of which have many clicks.
const LINKS: u32 = 10_000;

/// The link that has most of the clicks.
const HOT: u32 = 0;

/// Visitors from whom the hot link's clicks are drawn; some come far more often than others.
const VISITORS: u64 = 30_000_000;

/// What is made, and how often it is asked for.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Clicks on the hot link, one number for each set of tables; a fifth as many go to 9,999 other links
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1000000,10000000",
          value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    clicks: Vec<u64>,
    /// Days over which the clicks are spread; all but the last are closed slices
    #[arg(long, default_value = "366", value_parser = clap::value_parser!(u64).range(32..=1_095))]
    days: u64,
    /// How often each question is asked
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// What one set of tables showed.
#[derive(Debug, Serialize)]
struct Report {
    clicks: u64,
    /// Bytes on the disk per click, by table.
    bytes_per_click: Vec<(String, f64)>,
    /// Parts, by table.
    parts: Vec<(String, u64)>,
    /// Seconds to close the slices of common days, and of a month's last, the median of each.
    close_seconds: f64,
    fold_seconds: f64,
    questions: Vec<Asked>,
}

/// One question and how long its answers took, in milliseconds.
#[derive(Debug, Serialize)]
struct Asked {
    name: &'static str,
    p50: f64,
    p99: f64,
    /// The median divided by that of `SELECT 1` in the same minute.
    to_select_1: f64,
}

impl Asked {
    /// From how long the answers took, in microseconds, sorted.
    fn new(name: &'static str, taken: &[u32], select_1: Option<&Self>) -> Self {
        let [p50, p99] = [50, 99].map(|percent| f64::from(percentile(taken, percent)) / 1_000.0);
        Self { name, p50, p99, to_select_1: p50 / select_1.map_or(p50, |select_1| select_1.p50) }
    }
}

/// Measures and prints the result.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    prepare(&ENGINES)?;
    let mut reports = Vec::new();
    for clicks in &options.clicks {
        let engines = isolated().await;
        reports.push(measure(&options, *clicks, &engines).await?);
        engines.remove().await;
    }
    if options.json {
        say(&serde_json::to_string(&reports)?);
    } else {
        reports.iter().for_each(tell);
    }
    Ok(())
}

fn tell(report: &Report) {
    say(&format!("{} clicks on one link", report.clicks));
    say(&format!(
        "  close a slice {:.2} s, a month's last {:.2} s",
        report.close_seconds, report.fold_seconds
    ));
    for ((table, bytes), (_, parts)) in report.bytes_per_click.iter().zip(&report.parts) {
        say(&format!("  {table:<14} {bytes:6.1} bytes per click in {parts} parts"));
    }
    for Asked { name, p50, p99, to_select_1 } in &report.questions {
        say(&format!("  {name:<28} p50 {p50:8.1} ms  p99 {p99:8.1} ms  {to_select_1:7.1} x SELECT 1"));
    }
}

async fn measure(options: &Options, clicks: u64, engines: &Isolated) -> anyhow::Result<Report> {
    let api = Server::api(engines).await?;
    let stage = Stage::set(engines, &api, LINKS).await?;
    let today = Utc::now().date_naive();
    let first = today.checked_sub_days(Days::new(options.days - 1)).context("days before any date")?;
    complain(&format!("making {clicks} clicks on one link and {} on others", clicks / 5));
    let (mut closed, mut folded) = (Vec::new(), Vec::new());
    let (hot, cold) = (clicks / options.days, clicks / 5 / options.days);
    let epoch = format!("INSERT INTO owners SELECT {UPKEEP}, {VERSION}, 'bench', now64(3)");
    engines.clickhouse(&epoch).await;
    for (number, day) in (0..options.days).zip(first.iter_days()) {
        let clicks = day_of_clicks(stage.workspace, day, number * (hot + cold), hot, cold);
        engines.clickhouse(&clicks).await;
        if day == today {
            break;
        }
        let started = Instant::now();
        close(engines, day).await;
        let is_fold = day.succ_opt().is_some_and(|next| next.day() == 1);
        if is_fold { &mut folded } else { &mut closed }.push(millis(started.elapsed()));
    }
    complain("asking");
    let mut questions = vec![select_1(engines, options.repeats).await?];
    let mut connection = Connection::open(api.address()).await?;
    is_right(&mut connection, &stage.key, engines, first).await?;
    for (name, path) in (Questions { today }).all() {
        let request = http::get(&path, &stage.key);
        let taken = ask(options.repeats, async || connection.ask(&request, 200).await.map(drop)).await?;
        questions.push(Asked::new(name, &taken, questions.first()));
    }
    drop(connection);
    stage.close().await?;
    api.stop().await?;
    let rows = (hot + cold) * options.days;
    let mut report = Report {
        clicks,
        bytes_per_click: Vec::new(),
        parts: Vec::new(),
        close_seconds: middle(closed),
        fold_seconds: middle(folded),
        questions,
    };
    for table in ["clicks", "counts", "breakdowns"] {
        let sql = format!(
            "SELECT sum(bytes_on_disk), count() FROM system.parts \
             WHERE active AND database = currentDatabase() AND table = '{table}'"
        );
        let found = engines.clickhouse(&sql).await;
        let (bytes, parts) = found.trim().split_once('\t').context("no sizes")?;
        report.bytes_per_click.push((table.to_owned(), bytes.parse::<f64>()? / rows as f64));
        report.parts.push((table.to_owned(), parts.parse()?));
    }
    Ok(report)
}

/// What ClickHouse takes for nothing.
async fn select_1(engines: &Isolated, repeats: u32) -> anyhow::Result<Asked> {
    let client = client(&ClickhouseConfig { url: engines.clickhouse_url.parse()? });
    // On a connection that stays open, as the API's do.
    let taken = ask(repeats, async || {
        client.query("SELECT 1").fetch_bytes("TSV")?.collect().await?;
        Ok(())
    })
    .await?;
    Ok(Asked::new("SELECT 1", &taken, None))
}

/// Checks that the API knows all clicks of the hot link: a counter that is null or wrong is no result.
async fn is_right(
    connection: &mut Connection,
    key: &str,
    engines: &Isolated,
    first: NaiveDate,
) -> anyhow::Result<()> {
    let hot = link(HOT);
    let request = http::get(&format!("/api/links/{hot}?start_date={first}"), key);
    let shown: Value = serde_json::from_slice(connection.ask(&request, 200).await?)?;
    let sql = format!(
        "SELECT count() FROM clicks WHERE link_id = toUUID('{hot}') AND class = 'human' AND occurred_at >= '{first}'",
        hot = hot.uuid(),
    );
    let stored = engines.clickhouse(&sql).await;
    let shown = &shown["total_clicks"];
    ensure!(*shown == stored.trim().parse::<u64>()?, "the API shows {shown} clicks of {}", stored.trim());
    Ok(())
}

/// The statement that makes a day's clicks, the first of them with this number.
fn day_of_clicks(workspace: Uuid, day: NaiveDate, first: u64, hot: u64, cold: u64) -> String {
    let mut sql = include_str!("queries/clicks.sql").to_owned();
    for (name, value) in [
        ("workspace", workspace.to_string()),
        ("hot", hot.to_string()),
        ("cold", cold.to_string()),
        ("links", LINKS.to_string()),
        ("visitors", VISITORS.to_string()),
        ("first", first.to_string()),
        ("day", day.to_string()),
    ] {
        sql = sql.replace(&format!("{{{name}}}"), &value);
    }
    sql
}

/// Closes a slice as the processor does.
async fn close(engines: &Isolated, slice: NaiveDate) {
    let run = Run { scope: Scope::All, version: VERSION, slices: [(slice, 1)].into() };
    for statement in run.statements() {
        engines.clickhouse(&statement).await;
    }
}

/// Asks and returns how long each answer took, in microseconds, sorted.
async fn ask(repeats: u32, mut once: impl AsyncFnMut() -> anyhow::Result<()>) -> anyhow::Result<Vec<u32>> {
    let mut taken = Vec::new();
    // The first answer comes from a cold cache, and is not counted.
    for _ in 0..=repeats {
        let started = Instant::now();
        once().await?;
        taken.push(u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    taken.remove(0);
    taken.sort_unstable();
    Ok(taken)
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// The median of some milliseconds, in seconds.
fn middle(mut values: Vec<u32>) -> f64 {
    values.sort_unstable();
    f64::from(percentile(&values, 50)) / 1_000.0
}

/// Requests of people and programs.
struct Questions {
    today: NaiveDate,
}

impl Questions {
    /// Names, and paths with their queries.
    fn all(&self) -> Vec<(&'static str, String)> {
        let since = |days| self.today.checked_sub_days(Days::new(days)).unwrap_or(self.today);
        let (month, year) = (since(30), since(365));
        let (hot, small) = (link(HOT), link(LINKS / 2));
        let series = |start| format!("/api/links/{hot}/stats?interval=day&start_date={start}");
        let breakdown = |dimension| format!("/api/links/{hot}/stats/{dimension}?start_date={year}");
        vec![
            ("counter, a year", format!("/api/links/{hot}?start_date={year}")),
            ("counter of a small link", format!("/api/links/{small}?start_date={year}")),
            ("counters of the workspace", format!("/api/stats?interval=month&start_date={year}")),
            ("page of 100 links, a year", format!("/api/links?limit=100&sort=created_at&start_date={year}")),
            ("page of 100 small links", format!("/api/links?limit=100&start_date={year}")),
            ("daily series, 30 days", series(month)),
            ("daily series, a year", series(year)),
            ("breakdown by device, a year", breakdown("device_type")),
            ("breakdown by country, a year", breakdown("country")),
            ("breakdown by campaign, a year", breakdown("utm_campaign")),
            ("breakdown by referrer, a year", breakdown("referrer")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_statement_has_a_placeholder_left() {
        let today = "2026-11-21".parse().unwrap();
        let sql = day_of_clicks(Uuid::nil(), today, 0, 1, 1);
        assert!(!sql.contains('{') && !sql.contains('}'), "{sql}");
    }
}
