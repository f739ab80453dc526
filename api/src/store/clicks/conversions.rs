//! Conversions of the clicks of a window.

use std::collections::{BTreeSet, HashMap, HashSet};

use clickhouse::Row;
use clickhouse::error::Result;
use schemas::message::Class;
use serde::Deserialize;
use service::clickhouse::quoted;
use uuid::Uuid;

use super::query_pool::QueryPool;
use super::question::{Classes, Question};
use super::snapshot::no_state;
use super::source::{any_of, instant};
use crate::store::clicks::pieces::Range;

#[derive(Row, Deserialize)]
struct AllRow {
    #[serde(with = "clickhouse::serde::uuid")]
    link: Uuid,
    count: u64,
    first: i64,
    last: i64,
}

#[derive(Row, Deserialize)]
struct LinkRow {
    #[serde(with = "clickhouse::serde::uuid")]
    link: Uuid,
    count: u64,
}

/// Counts the conversions of the question's clicks.
pub(crate) async fn conversions(queries: &QueryPool, question: &Question<'_>) -> Result<u64> {
    Ok(conversions_by_link(queries, question).await?.into_values().sum())
}

/// Counts the conversions of the question's clicks by link. Links without any may be missing.
///
/// The processor stores a conversion once its click is stored, with the time of the click's row. It has its click's
/// class, and counts as human if there is no click at that time: the click was removed meanwhile, or a former release
/// stored the conversion with the time in the click's id.
///
/// For one class this reads time and class of every click between the first and the last converted one.
pub(crate) async fn conversions_by_link(
    queries: &QueryPool,
    question: &Question<'_>,
) -> Result<HashMap<Uuid, u64>> {
    if question.window.is_empty() {
        return Ok(HashMap::new());
    }
    let of = format!(
        "workspace_id = toUUID('{}') AND {}",
        question.workspace,
        question.of.of_raw(question.workspace)
    );
    let counted = counted(queries)?;
    let all = format!(
        "SELECT link_id AS link, uniqExact(click_id) AS count, toUnixTimestamp64Milli(min(occurred_at)) AS first,
                toUnixTimestamp64Milli(max(occurred_at)) AS last
         FROM conversions WHERE {of} AND {window}{counted} GROUP BY link",
        window = any_of(&[question.window], "occurred_at", instant),
    );
    let rows = queries.query(&all).fetch_all::<AllRow>().await?;
    let mut counts: HashMap<Uuid, u64> = rows.iter().map(|row| (row.link, row.count)).collect();
    let Classes::One(class) = question.classes else { return Ok(counts) };
    let (first, last) = (rows.iter().map(|row| row.first).min(), rows.iter().map(|row| row.last).max());
    let Some((start, last)) = first.zip(last) else { return Ok(counts) };
    let LookedUp { condition, are_of_class } = LookedUp::of(class);
    let within = any_of(&[Range { start, end: last + 1 }], "occurred_at", instant);
    // Time and class first: few rows are left when the wide column of ids is read.
    let looked_up = format!(
        "SELECT link_id AS link, uniqExact(click_id) AS count FROM {clicks}
         PREWHERE {of} AND {within} AND broker_ts >= {start} AND {condition}
              AND occurred_at IN (SELECT occurred_at FROM conversions WHERE {of} AND {within}{counted})
         WHERE click_id IN (SELECT click_id FROM conversions WHERE {of} AND {within}{counted}) GROUP BY link",
        clicks = queries.client.everywhere().await?.of("clicks"),
        start = instant(start),
    );
    let looked_up = queries.query(&looked_up).fetch_all::<LinkRow>().await?;
    let looked_up: HashMap<Uuid, u64> = looked_up.into_iter().map(|row| (row.link, row.count)).collect();
    if are_of_class {
        return Ok(looked_up);
    }
    for (link, count) in &mut counts {
        *count = count.saturating_sub(looked_up.get(link).copied().unwrap_or_default());
    }
    Ok(counts)
}

/// Returns a further condition: the conversions that the state of the replicas has, or all of a single server.
fn counted(queries: &QueryPool) -> Result<String> {
    if !queries.client.is_replicated() {
        return Ok(String::new());
    }
    let blocks = queries.recent.conversions().ok_or_else(no_state)?;
    Ok(format!(" AND {}", any_of(&blocks, "_block_number", |number| number.to_string())))
}

/// The clicks that determine the class of a conversion: those of the class, or for humans those of every other class.
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
    /// The time in its id, in milliseconds since 1970.
    pub(crate) at: i64,
    /// Empty when it is no longer known.
    pub(crate) click_id: &'a str,
}

/// Returns for each conversion whether it is of a class. One whose click is not stored at the time in its id is human.
pub(crate) async fn are_of_class(
    queries: &QueryPool,
    workspace: Uuid,
    class: Class,
    clicks: &[Converted<'_>],
) -> Result<Vec<bool>> {
    let Some(first) = clicks.iter().map(|click| click.at).min() else { return Ok(Vec::new()) };
    let LookedUp { condition, are_of_class } = LookedUp::of(class);
    let list = |literals: BTreeSet<String>| Vec::from_iter(literals).join(", ");
    let sql = format!(
        "SELECT DISTINCT click_id FROM {clicks}
         PREWHERE workspace_id = toUUID('{workspace}') AND link_id IN ({links}) AND occurred_at IN ({times})
              AND broker_ts >= {first} AND {condition}
         WHERE click_id IN ({ids})",
        clicks = queries.client.everywhere().await?.of("clicks"),
        links = list(clicks.iter().map(|click| format!("toUUID('{}')", click.link)).collect()),
        times = list(clicks.iter().map(|click| instant(click.at)).collect()),
        first = instant(first),
        ids = list(clicks.iter().map(|click| quoted(click.click_id)).collect()),
    );
    let found: HashSet<String> = queries.query(&sql).fetch_all::<String>().await?.into_iter().collect();
    Ok(clicks.iter().map(|click| found.contains(click.click_id) == are_of_class).collect())
}
