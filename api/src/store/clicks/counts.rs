//! Totals and uniques by the hour, the day and the month.

use clickhouse::Row;
use clickhouse::error::Result;
use serde::Deserialize;
use uuid::Uuid;

use super::query_pool::QueryPool;
use super::question::Question;
use super::snapshot::Snapshot;
use super::source::{Key, Rollup, added_up};
use crate::store::clicks::pieces::{Range, Unit};

/// Clicks, and distinct visitors among them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) total: u64,
    pub(crate) unique: u64,
}

#[derive(Row, Deserialize)]
struct LinkRow {
    #[serde(with = "clickhouse::serde::uuid")]
    k: Uuid,
    total: u64,
    unique: u64,
}

#[derive(Row, Deserialize)]
struct LinkTotalRow {
    #[serde(with = "clickhouse::serde::uuid")]
    k: Uuid,
    total: i64,
}

#[derive(Row, Deserialize)]
struct LinkDayRow {
    #[serde(with = "clickhouse::serde::uuid")]
    link: Uuid,
    day: i64,
    total: i64,
}

#[derive(Row, Deserialize)]
struct PointRow {
    k: u32,
    total: u64,
    unique: u64,
}

#[derive(Row, Deserialize)]
struct ClassRow {
    k: String,
    total: u64,
    unique: u64,
}

fn rollup() -> Rollup {
    Rollup {
        table: "counts",
        condition: "true".to_owned(),
        units: Unit::OF_COUNTS,
        start: |millis| format!("toDateTime({}, 'UTC')", millis / 1_000),
    }
}

/// Queries clicks and visitors by a key. `after` follows the rows: grouping and order.
fn counted(snapshot: &Snapshot, question: &Question<'_>, key: &Key, after: &str) -> Option<String> {
    let rows = question.rows(snapshot, &rollup(), key, &[question.window], true)?;
    Some(added_up(&rows, after))
}

/// Counts by link. Links without clicks are missing.
pub(crate) async fn by_link(
    queries: &QueryPool,
    snapshot: &Snapshot,
    question: &Question<'_>,
) -> Result<Vec<(Uuid, Count)>> {
    let Some(sql) = counted(snapshot, question, &Key::column("link_id"), "") else { return Ok(Vec::new()) };
    let rows = queries.query(&sql).fetch_all::<LinkRow>().await?;
    Ok(rows.into_iter().map(|LinkRow { k, total, unique }| (k, Count { total, unique })).collect())
}

/// Totals by link and UTC day, in days since 1970. Days without clicks are missing.
///
/// `days` are the whole days of the window.
pub(crate) async fn by_link_and_day(
    queries: &QueryPool,
    snapshot: &Snapshot,
    question: &Question<'_>,
    days: &[Range],
) -> Result<Vec<(Uuid, i64, i64)>> {
    let key = |column: &str| format!("(link_id, toInt64(intDiv(toUnixTimestamp({column}), 86400)))");
    let key = Key { of_rollup: key("start"), of_raw: key("occurred_at"), only: None, whole: None };
    let Some(rows) = question.rows(snapshot, &rollup(), &key, days, false) else {
        return Ok(Vec::new());
    };
    let sql = format!("SELECT k.1 AS link, k.2 AS day, toInt64(sum(n)) AS total FROM ({rows}) GROUP BY k");
    let rows = queries.query(&sql).fetch_all::<LinkDayRow>().await?;
    Ok(rows.into_iter().map(|LinkDayRow { link, day, total }| (link, day, total)).collect())
}

/// Totals of every link with clicks of a workspace, to order links by them.
pub(crate) async fn totals_of_all(
    queries: &QueryPool,
    snapshot: &Snapshot,
    question: &Question<'_>,
) -> Result<Vec<(Uuid, i64)>> {
    let key = Key::column("link_id");
    let Some(rows) = question.rows(snapshot, &rollup(), &key, &[question.window], false) else {
        return Ok(Vec::new());
    };
    let sql = format!("SELECT k, toInt64(sum(n)) AS total FROM ({rows}) GROUP BY k");
    let rows = queries.query(&sql).fetch_all::<LinkTotalRow>().await?;
    Ok(rows.into_iter().map(|row| (row.k, row.total)).collect())
}

/// Counts by class, the most clicks first.
pub(crate) async fn by_class(
    queries: &QueryPool,
    snapshot: &Snapshot,
    question: &Question<'_>,
    limit: usize,
) -> Result<Vec<(String, Count)>> {
    let order = format!("ORDER BY total DESC, k LIMIT {limit}");
    let Some(sql) = counted(snapshot, question, &Key::column("toString(class)"), &order) else {
        return Ok(Vec::new());
    };
    let rows = queries.query(&sql).fetch_all::<ClassRow>().await?;
    Ok(rows.into_iter().map(|ClassRow { k, total, unique }| (k, Count { total, unique })).collect())
}

/// Counts of the whole window and of each point, from one query, so that the points add up to the whole.
///
/// `starts` are the beginnings of the points, in seconds since 1970. With `by_hour` they are full hours of UTC;
/// otherwise raw rows are read.
pub(crate) async fn series(
    queries: &QueryPool,
    snapshot: &Snapshot,
    question: &Question<'_>,
    starts: &[i64],
    by_hour: bool,
) -> Result<(Count, Vec<Count>)> {
    let mut points = vec![Count::default(); starts.len()];
    let mut whole = Count::default();
    let ranges = ranges(question.window, starts);
    // Everything before the second beginning belongs to the first point, so its own beginning may be any number but 0,
    // the key of the whole.
    let later = starts.iter().skip(1).map(|start| u32::try_from(*start).unwrap_or(u32::MAX));
    let keys: Vec<u32> = std::iter::once(1).chain(later).collect();
    let point = |column: &str| format!("toUInt32(roundDown(toUInt32(toUnixTimestamp({column})), {keys:?}))");
    let key = Key {
        of_rollup: point("start"),
        of_raw: point("occurred_at"),
        only: None,
        whole: Some("toUInt32(0)"),
    };
    // With nothing closed, every row is a raw one.
    let closed_until = if by_hour { snapshot.closed_until } else { 0 };
    let snapshot = &Snapshot { closed_until, ..snapshot.clone() };
    let Some(rows) = question.rows(snapshot, &rollup(), &key, &ranges, true) else {
        return Ok((whole, points));
    };
    for PointRow { k, total, unique } in queries.query(&added_up(&rows, "")).fetch_all::<PointRow>().await? {
        let count = Count { total, unique };
        match keys.binary_search(&k) {
            Ok(place) => points[place] = count,
            Err(_) => whole = count,
        }
    }
    Ok((whole, points))
}

/// Returns the points as ranges of the window: the first begins and the last ends with it.
fn ranges(window: Range, starts: &[i64]) -> Vec<Range> {
    let borders: Vec<i64> = std::iter::once(window.start)
        .chain(starts.iter().skip(1).map(|start| start * 1_000))
        .chain([window.end])
        .collect();
    borders.windows(2).map(|pair| Range { start: pair[0], end: pair[1] }).collect()
}
