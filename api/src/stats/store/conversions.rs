//! Conversions of the clicks of a window.

use clickhouse::Row;
use clickhouse::error::Result;
use schemas::message::Class;
use serde::Deserialize;

use super::desk::Desk;
use super::snapshot::Snapshot;
use super::source::{Classes, Question, any_of, instant};
use crate::stats::pieces::Range;

#[derive(Row, Deserialize)]
struct AllRow {
    count: u64,
    first: i64,
    last: i64,
}

#[derive(Row, Deserialize)]
struct CountRow {
    count: u64,
}

/// Counts the conversions whose clicks are asked about.
///
/// A conversion is of its click's class. One whose click is not stored at the time that its id names counts as human:
/// it is not there yet, or its edge's clock ran ahead of the broker's.
///
/// For one class this reads time and class of every click between the first and the last that converted, which no
/// rollup has.
pub(crate) async fn conversions(desk: &Desk, snapshot: &Snapshot, question: &Question<'_>) -> Result<u64> {
    if question.window.is_empty() {
        return Ok(0);
    }
    let of = format!("workspace_id = toUUID('{}') AND {}", question.workspace, question.of.of_raw());
    let all = format!(
        "SELECT uniqExact(click_id) AS count, toUnixTimestamp64Milli(min(occurred_at)) AS first,
                toUnixTimestamp64Milli(max(occurred_at)) AS last
         FROM conversions WHERE {of} AND {window}",
        window = any_of(&[question.window], "occurred_at", instant),
    );
    let all = desk.query(&all).fetch_one::<AllRow>().await?;
    let class = match question.classes {
        Classes::One(Class::Human) => format!("class != '{}'", Class::Human),
        Classes::One(_) => question.classes.condition(),
        Classes::All => return Ok(all.count),
    };
    if all.count == 0 {
        return Ok(0);
    }
    let converted = Range { start: all.first, end: all.last + 1 };
    let within = any_of(&[converted], "occurred_at", instant);
    // Time and class before the id, which decides: hardly a row is left when it comes to the wide column.
    let of_class = format!(
        "SELECT uniqExact(click_id) AS count FROM {clicks}
         PREWHERE {of} AND {within} AND broker_ts >= {start} AND {class}
              AND occurred_at IN (SELECT occurred_at FROM conversions WHERE {of} AND {within})
         WHERE click_id IN (SELECT click_id FROM conversions WHERE {of} AND {within})",
        clicks = snapshot.generation.clicks(),
        start = instant(converted.start),
    );
    let of_class = desk.query(&of_class).fetch_one::<CountRow>().await?.count;
    match question.classes {
        Classes::One(Class::Human) => Ok(all.count.saturating_sub(of_class)),
        _ => Ok(of_class),
    }
}
