//! `bench queries`: what rollups cost and what they save, from a million clicks on one link to a hundred.
//!
//! The statements have the shape of the API's, which nobody may depend on: whole months, else days, of closed slices
//! whose version is in force, and raw rows of the day at hand.

use std::time::{Duration, Instant};

use ::tests::engines::{Isolated, isolated};
use anyhow::Context as _;

use chrono::{Datelike as _, Days, NaiveDate, Utc};
use clickhouse::Client;
use schemas::clickhouse::Generation;
use schemas::clickhouse::rollup::{Run, Scope};
use schemas::row::UPKEEP;
use serde::Serialize;
use service::clickhouse::{ClickhouseConfig, client};
use uuid::Uuid;

use crate::prepare::{ENGINES, prepare};
use crate::statistics::percentile;
use crate::terminal::{complain, say};

/// The tables that a run fills.
const TABLES: Generation = Generation::FIRST;

/// The workspace of all clicks.
const WORKSPACE: Uuid = Uuid::from_u128(0x7000_8000_0000_0000_aaaa);

/// The version of all slices: that of a processor which does the upkeep for a year, and so the common case.
const VERSION: u64 = 1;

/// Links beside the hot one, few of which have many clicks.
const LINKS: u64 = 10_000;

/// Visitors from whom the hot link's clicks are drawn; some come far more often than others.
const VISITORS: u64 = 30_000_000;

/// What is made, and how often it is asked for.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Clicks on the hot link, one number for each set of tables; a fifth as many go to 10,000 other links
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
    let today = Utc::now().date_naive();
    let first = today.checked_sub_days(Days::new(options.days - 1)).context("days before any date")?;
    complain(&format!("making {clicks} clicks on one link and {} on others", clicks / 5));
    let (mut closed, mut folded) = (Vec::new(), Vec::new());
    let (hot, cold) = (clicks / options.days, clicks / 5 / options.days);
    let epoch = format!("INSERT INTO owners SELECT {UPKEEP}, {VERSION}, 'bench', now64(3)");
    engines.clickhouse(&epoch).await;
    for (number, day) in (0..options.days).zip(first.iter_days()) {
        engines.clickhouse(&day_of_clicks(day, number * (hot + cold), hot, cold)).await;
        if day == today {
            break;
        }
        let started = Instant::now();
        close(engines, day).await;
        let is_fold = day.succ_opt().is_some_and(|next| next.day() == 1);
        if is_fold { &mut folded } else { &mut closed }.push(millis(started.elapsed()));
    }
    complain("asking");
    let client = client(&ClickhouseConfig { url: engines.clickhouse_url.parse()? });
    let mut questions: Vec<Asked> = Vec::new();
    for (name, sql) in (Rows { today }).questions() {
        let taken = ask(&client, &sql, options.repeats).await?;
        let [p50, p99] = [50, 99].map(|percent| f64::from(percentile(&taken, percent)) / 1_000.0);
        let to_select_1 = p50 / questions.first().map_or(p50, |select_1| select_1.p50);
        questions.push(Asked { name, p50, p99, to_select_1 });
    }
    let rows = (hot + cold) * options.days;
    let mut report = Report {
        clicks,
        bytes_per_click: Vec::new(),
        parts: Vec::new(),
        close_seconds: middle(closed),
        fold_seconds: middle(folded),
        questions,
    };
    for table in [TABLES.clicks(), TABLES.counts(), TABLES.breakdowns()] {
        let sql = format!(
            "SELECT sum(bytes_on_disk), count() FROM system.parts \
             WHERE active AND database = currentDatabase() AND table = '{table}'"
        );
        let found = engines.clickhouse(&sql).await;
        let (bytes, parts) = found.trim().split_once('\t').context("no sizes")?;
        report.bytes_per_click.push((table.clone(), bytes.parse::<f64>()? / rows as f64));
        report.parts.push((table, parts.parse()?));
    }
    Ok(report)
}

/// The statement that makes a day's clicks, the first of them with this number.
fn day_of_clicks(day: NaiveDate, first: u64, hot: u64, cold: u64) -> String {
    let mut sql = include_str!("queries/clicks.sql").to_owned();
    for (name, value) in [
        ("clicks", TABLES.clicks()),
        ("workspace", WORKSPACE.to_string()),
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
    let run = Run { generation: TABLES, scope: Scope::All, version: VERSION, slices: vec![slice] };
    for statement in run.statements() {
        engines.clickhouse(&statement).await;
    }
}

/// Asks and returns how long each answer took, in microseconds, sorted.
async fn ask(client: &Client, sql: &str, repeats: u32) -> anyhow::Result<Vec<u32>> {
    let mut taken = Vec::new();
    // The first answer comes from a cold cache, and is not counted.
    for _ in 0..=repeats {
        let started = Instant::now();
        // On a connection that stays open, as the API's do.
        client.query(sql).fetch_bytes("TSV")?.collect().await?;
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

/// Writes questions about what was made.
struct Rows {
    today: NaiveDate,
}

impl Rows {
    fn questions(&self) -> Vec<(&'static str, String)> {
        let link = |number: u64| {
            format!("toUUID('{}')", Uuid::from_u128(0x7000_8000_0000_0000_0000 | u128::from(number)))
        };
        let page = |from: u64| {
            let links: Vec<String> = (from..from + 100).map(link).collect();
            format!("link_id IN ({})", links.join(", "))
        };
        let days = |days| self.today.checked_sub_days(Days::new(days)).unwrap_or(self.today);
        let hot = format!("link_id = {}", link(0));
        let whole = format!("link_id = toUUID('{}')", Uuid::nil());
        let year = days(365);
        let breakdown = |dimension| self.breakdown(&hot, year, dimension);
        vec![
            // The least that any question costs.
            ("SELECT 1", "SELECT 1".to_owned()),
            ("counter, a year", self.counter(&hot, year)),
            ("counter of a small link", self.counter(&format!("link_id = {}", link(5_000)), year)),
            ("counter of the workspace", self.counter(&whole, year)),
            ("page of 100 links, a year", self.counter(&page(0), year)),
            ("page of 100 small links", self.counter(&page(5_000), year)),
            ("daily series, 30 days", self.series(&hot, days(30))),
            ("daily series, a year", self.series(&hot, year)),
            ("breakdown by device, a year", breakdown("device_type")),
            ("breakdown by country, a year", breakdown("country")),
            ("breakdown by campaign, a year", breakdown("utm_campaign")),
            ("breakdown by referrer, a year", breakdown("referrer")),
        ]
    }

    fn counter(&self, of: &str, start: NaiveDate) -> String {
        let rolled =
            self.rolled(&TABLES.counts(), of, start, "link_id AS k, clicks AS n, visitors AS v", true);
        let raw = self.raw(of, start, "link_id", 17);
        format!("SELECT k, sum(n), uniqCombined64Merge(17)(v) FROM ({rolled} UNION ALL {raw}) GROUP BY k")
    }

    fn series(&self, of: &str, start: NaiveDate) -> String {
        let rolled =
            self.rolled(&TABLES.counts(), of, start, "toDate(start) AS k, clicks AS n, visitors AS v", false);
        let raw = self.raw(of, start, "toDate(occurred_at)", 17);
        format!(
            "SELECT k, sum(n), uniqCombined64Merge(17)(v) FROM ({rolled} UNION ALL {raw}) GROUP BY k ORDER BY k"
        )
    }

    /// First which values, then their visitors: most of the states are of values that are not asked for.
    fn breakdown(&self, of: &str, start: NaiveDate, dimension: &str) -> String {
        let of_dimension = format!("{of} AND dimension = '{dimension}'");
        let table = TABLES.breakdowns();
        let top = self.rolled(&table, &of_dimension, start, "value AS k, clicks AS n", true);
        let top = format!("SELECT k FROM ({top}) GROUP BY k ORDER BY sum(n) DESC LIMIT 50");
        let states =
            self.rolled(&table, &of_dimension, start, "value AS k, clicks AS n, visitors AS v", true);
        let raw = self.raw(of, start, &format!("toString({dimension})"), 14);
        format!(
            "WITH top AS ({top}) SELECT k, sum(n), uniqCombined64Merge(14)(v) FROM \
             ({states} AND value IN (top) UNION ALL {raw} HAVING k IN (top)) GROUP BY k ORDER BY 2 DESC"
        )
    }

    fn rolled(&self, table: &str, of: &str, start: NaiveDate, columns: &str, months: bool) -> String {
        format!(
            "SELECT {columns} FROM {table} WHERE workspace_id = toUUID('{WORKSPACE}') AND {of} AND class = 'human' \
             AND ({units}) AND slice < '{today}' AND version = {VERSION}",
            units = self.units(start, months),
            today = self.today,
        )
    }

    /// Whole months of the window, and the days before and behind them.
    fn units(&self, start: NaiveDate, months: bool) -> String {
        let first = |day: NaiveDate| day.with_day(1).unwrap_or(day);
        let days = |from: NaiveDate, until: NaiveDate| {
            format!("(unit = 'day' AND start >= toDate('{from}') AND start < toDate('{until}'))")
        };
        let (next, current) = (first(start + Days::new(31)), first(self.today));
        let from = if start.day() == 1 { start } else { next };
        if !months || from >= current {
            return days(start, self.today);
        }
        format!(
            "{} OR (unit = 'month' AND start >= toDate('{from}') AND start < toDate('{current}')) OR {}",
            days(start, from),
            days(current, self.today)
        )
    }

    fn raw(&self, of: &str, start: NaiveDate, key: &str, precision: u8) -> String {
        // The workspace as a whole has no link of its own among raw rows.
        let of = if of.contains(&Uuid::nil().to_string()) { "1" } else { of };
        let key = if of == "1" { format!("toUUID('{}')", Uuid::nil()) } else { key.to_owned() };
        format!(
            "SELECT {key} AS k, count() AS n, uniqCombined64State({precision})(visitor) AS v FROM {clicks} \
             WHERE workspace_id = toUUID('{WORKSPACE}') AND {of} AND class = 'human' \
             AND broker_ts >= toDateTime64('{today} 00:00:00', 3, 'UTC') \
             AND occurred_at >= toDateTime64('{start} 00:00:00', 3, 'UTC') GROUP BY k",
            clicks = TABLES.clicks(),
            today = self.today,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_days_then_whole_months_then_days() {
        let rows = Rows { today: "2026-11-21".parse().unwrap() };
        let units = |start: &str, months| rows.units(start.parse().unwrap(), months);
        let year = units("2025-11-21", true);
        for piece in [
            "start >= toDate('2025-11-21') AND start < toDate('2025-12-01')",
            "unit = 'month' AND start >= toDate('2025-12-01') AND start < toDate('2026-11-01')",
            "start >= toDate('2026-11-01') AND start < toDate('2026-11-21')",
        ] {
            assert!(year.contains(piece), "{year}");
        }
        assert!(
            units("2026-10-01", true)
                .contains("start >= toDate('2026-10-01') AND start < toDate('2026-11-01')")
        );
        assert!(!units("2026-11-03", true).contains("month"));
        assert!(!units("2025-11-21", false).contains("month"));
    }

    #[test]
    fn no_statement_has_a_placeholder_left() {
        let rows = Rows { today: "2026-11-21".parse().unwrap() };
        let day = day_of_clicks(rows.today, 0, 1, 1);
        for sql in rows.questions().into_iter().map(|(_, sql)| sql).chain([day]) {
            assert!(!sql.contains('{') && !sql.contains('}'), "{sql}");
        }
    }
}
