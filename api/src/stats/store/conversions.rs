//! Conversions of the clicks of a window.

use std::collections::{BTreeSet, HashSet};

use clickhouse::Row;
use clickhouse::error::Result;
use schemas::clickhouse::{CURRENT_GENERATION, Generation};
use schemas::message::Class;
use serde::Deserialize;
use uuid::Uuid;

use super::desk::Desk;
use super::snapshot::Snapshot;
use super::source::{Classes, Question, any_of, instant, quoted};
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
    let Classes::One(class) = question.classes else { return Ok(all.count) };
    let looked_up = LookedUp::of(class);
    if all.count == 0 {
        return Ok(0);
    }
    let converted = Range { start: all.first, end: all.last + 1 };
    let within = any_of(&[converted], "occurred_at", instant);
    // Time and class before the id, which decides: hardly a row is left when it comes to the wide column.
    let of_class = format!(
        "SELECT uniqExact(click_id) AS count FROM {clicks}
         PREWHERE {of} AND {within} AND broker_ts >= {start} AND {condition}
              AND occurred_at IN (SELECT occurred_at FROM conversions WHERE {of} AND {within})
         WHERE click_id IN (SELECT click_id FROM conversions WHERE {of} AND {within})",
        clicks = snapshot.generation.clicks(),
        start = instant(converted.start),
        condition = looked_up.condition,
    );
    let of_class = desk.query(&of_class).fetch_one::<CountRow>().await?.count;
    Ok(if looked_up.are_of_class { of_class } else { all.count.saturating_sub(of_class) })
}

/// Which clicks tell the class of a conversion: those of the class, or for people those of every other one.
struct LookedUp {
    condition: String,
    are_of_class: bool,
}

impl LookedUp {
    fn of(class: Class) -> Self {
        match class {
            Class::Human => Self { condition: format!("class != '{class}'"), are_of_class: false },
            Class::Bot | Class::Preview => {
                Self { condition: Classes::One(class).condition(), are_of_class: true }
            }
        }
    }
}

/// A click that converted.
pub(crate) struct Converted<'a> {
    pub(crate) link: Uuid,
    /// When it happened, as its id says, in milliseconds since 1970.
    pub(crate) at: i64,
    /// Empty: not known any more.
    pub(crate) click_id: &'a str,
}

/// Says of each conversion whether it is of a class, by the rule of [`conversions`].
pub(crate) async fn are_of_class(
    desk: &Desk,
    workspace: Uuid,
    class: Class,
    clicks: &[Converted<'_>],
) -> Result<Vec<bool>> {
    let Some(first) = clicks.iter().map(|click| click.at).min() else { return Ok(Vec::new()) };
    let generation: Generation = desk.query(CURRENT_GENERATION).fetch_one().await.map(Generation)?;
    let LookedUp { condition, are_of_class } = LookedUp::of(class);
    let list = |literals: BTreeSet<String>| Vec::from_iter(literals).join(", ");
    let sql = format!(
        "SELECT DISTINCT click_id FROM {table}
         PREWHERE workspace_id = toUUID('{workspace}') AND link_id IN ({links}) AND occurred_at IN ({times})
              AND broker_ts >= {first} AND {condition}
         WHERE click_id IN ({ids})",
        table = generation.clicks(),
        links = list(clicks.iter().map(|click| format!("toUUID('{}')", click.link)).collect()),
        times = list(clicks.iter().map(|click| instant(click.at)).collect()),
        first = instant(first),
        ids = list(clicks.iter().map(|click| quoted(click.click_id)).collect()),
    );
    let found: HashSet<String> = desk.query(&sql).fetch_all::<String>().await?.into_iter().collect();
    Ok(clicks.iter().map(|click| found.contains(click.click_id) == are_of_class).collect())
}
