//! `bench queries`: how long the API takes for counters, series and breakdowns of a link with many clicks.
//!
//! Requests go to a running API, one after the other on one connection. Rollups answer for closed slices, raw rows for
//! today.

use std::time::Instant;

use ::tests::engines::{Isolated, isolated};
use anyhow::{Context as _, ensure};
use chrono::{Days, NaiveDate, Utc};
use hdrhistogram::Histogram;
use schemas::clickhouse::rollup::{Run, Scope};
use schemas::row::UPKEEP;
use serde::Serialize;
use serde_json::Value;
use service::clickhouse::{Clickhouse, ClickhouseConfig};
use uuid::Uuid;

use crate::api::stage::{Stage, link};
use crate::load::{Connection, get};
use crate::statistics::{histogram, micros};
use crate::terminal::{ENGINES, prepare, report_progress};

/// The version of all slices.
const VERSION: u64 = 1;

/// Links; one of them has most of the clicks.
const LINKS: u32 = 10_000;

/// The link that has most of the clicks.
const HOT: u32 = 0;

/// Visitors of the hot link; some click far more often than others.
const VISITORS: u64 = 30_000_000;

/// Days over which the clicks are spread; all but the last are closed slices.
const DAYS: u64 = 366;

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Clicks on the hot link, one number for each set of tables; a fifth as many go to 9,999 other links
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1000000,10000000",
          value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    clicks: Vec<u64>,
    /// How often each question is asked
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
}

/// The result of one set of tables.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    clicks: u64,
    questions: Vec<Asked>,
}

/// One question and the latencies of its answers, in milliseconds.
#[derive(Debug, Serialize)]
struct Asked {
    name: &'static str,
    p50: f64,
    p99: f64,
    /// The median in parts of that of `SELECT 1` in the same minute.
    to_select_1: f64,
}

impl Asked {
    fn new(name: &'static str, latencies: &Histogram<u64>, select_1: Option<&Self>) -> Self {
        let [p50, p99] = [0.5, 0.99].map(|quantile| latencies.value_at_quantile(quantile) as f64 / 1_000.0);
        Self { name, p50, p99, to_select_1: p50 / select_1.map_or(p50, |select_1| select_1.p50) }
    }
}

/// Measures with each number of clicks.
pub(crate) async fn run(options: Options) -> anyhow::Result<Vec<Report>> {
    prepare(&ENGINES)?;
    let mut reports = Vec::new();
    for clicks in &options.clicks {
        let engines = isolated().await;
        reports.push(measure(&options, *clicks, &engines).await?);
        engines.remove().await;
    }
    Ok(reports)
}

/// Returns the result for people.
pub(crate) fn text(reports: &[Report]) -> String {
    let mut lines = Vec::new();
    for report in reports {
        lines.push(format!("{} clicks on one link", report.clicks));
        for Asked { name, p50, p99, to_select_1 } in &report.questions {
            lines.push(format!(
                "  {name:<28} p50 {p50:8.1} ms  p99 {p99:8.1} ms  {to_select_1:7.1} x SELECT 1"
            ));
        }
    }
    lines.join("\n")
}

async fn measure(options: &Options, clicks: u64, engines: &Isolated) -> anyhow::Result<Report> {
    let stage = Stage::start(engines, LINKS).await?;
    let today = Utc::now().date_naive();
    let first = today.checked_sub_days(Days::new(DAYS - 1)).context("days before any date")?;
    report_progress(&format!("creating {clicks} clicks on one link and {} on others", clicks / 5));
    let (hot, cold) = (clicks / DAYS, clicks / 5 / DAYS);
    let epoch = format!("INSERT INTO owners SELECT {UPKEEP}, {VERSION}, 'bench', now64(3)");
    engines.clickhouse(&epoch).await;
    for (number, day) in (0..DAYS).zip(first.iter_days()) {
        let clicks = day_of_clicks(stage.workspace, day, number * (hot + cold), hot, cold);
        engines.clickhouse(&clicks).await;
        if day == today {
            break;
        }
        close(engines, day).await;
    }
    report_progress("asking");
    let mut questions = vec![select_1(engines, options.repeats).await?];
    let mut connection = Connection::open(stage.address).await?;
    check_counter(&mut connection, &stage.key, engines, first).await?;
    for (name, path) in questions_of(today) {
        let request = get(&path, &stage.key);
        let taken = ask(options.repeats, async || connection.ask(&request, 200).await.map(drop)).await?;
        questions.push(Asked::new(name, &taken, questions.first()));
    }
    drop(connection);
    stage.stop().await?;
    Ok(Report { clicks, questions })
}

/// Measures `SELECT 1`, on a connection that stays open as the API's do.
async fn select_1(engines: &Isolated, repeats: u32) -> anyhow::Result<Asked> {
    let client = Clickhouse::new(&ClickhouseConfig::of(engines.clickhouse_url.parse()?));
    let taken = ask(repeats, async || {
        client.query("SELECT 1").fetch_bytes("TSV")?.collect().await?;
        Ok(())
    })
    .await?;
    Ok(Asked::new("SELECT 1", &taken, None))
}

/// Checks that the API counts all clicks of the hot link: a missing or wrong counter would be faster.
async fn check_counter(
    connection: &mut Connection,
    key: &str,
    engines: &Isolated,
    first: NaiveDate,
) -> anyhow::Result<()> {
    let hot = link(HOT);
    let request = get(&format!("/api/links/{hot}?start_date={first}"), key);
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

/// Returns the statement that inserts a day of clicks, numbered from `first`.
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

/// Asks, and returns the latencies in microseconds.
async fn ask(
    repeats: u32,
    mut once: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Histogram<u64>> {
    // Not measured, because the first answer comes from a cold cache.
    once().await?;
    let mut latencies = histogram()?;
    for _ in 0..repeats {
        let started = Instant::now();
        once().await?;
        latencies.record(micros(started.elapsed()))?;
    }
    Ok(latencies)
}

/// Returns the names of the questions, and their paths with queries.
fn questions_of(today: NaiveDate) -> Vec<(&'static str, String)> {
    let since = |days| today.checked_sub_days(Days::new(days)).unwrap_or(today);
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
