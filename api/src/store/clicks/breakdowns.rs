//! Totals and uniques by the values of a dimension.

use clickhouse::Row;
use clickhouse::error::Result;
use schemas::clickhouse::rollup::DIMENSIONS;
use serde::Deserialize;
use service::clickhouse::{quoted, text};
use service::http::ApiError;

use super::counts::{Count, by_class};
use super::pieces::DAY;
use super::query_pool::QueryPool;
use super::question::Question;
use super::snapshot::Snapshot;
use super::source::{Key, Rollup, added_up};
use crate::store::clicks::pieces::Unit;

/// A dimension of clicks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dimension {
    /// The class, which the rollup of counts has.
    Class,
    /// A column of the raw rows, with the same name in the rollup of breakdowns.
    Column(&'static str),
}

impl Dimension {
    /// Parses a name.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, ApiError> {
        if text == "class" {
            return Ok(Self::Class);
        }
        DIMENSIONS.into_iter().find(|name| *name == text).map(Self::Column).ok_or_else(|| {
            let message = format!("must be one of {}, class", DIMENSIONS.join(", "));
            ApiError::invalid_field("dimension", message)
        })
    }
}

/// The clicks of one value; empty if it is unknown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) value: String,
    pub(crate) count: Count,
}

#[derive(Row, Deserialize)]
struct ValueRow {
    #[serde(deserialize_with = "text::decoded")]
    value: String,
}

#[derive(Row, Deserialize)]
struct ItemRow {
    #[serde(deserialize_with = "text::decoded")]
    value: String,
    total: u64,
    unique: u64,
}

/// Reads the values with the most clicks, the most first.
pub(crate) async fn breakdown(
    queries: &QueryPool,
    snapshot: &Snapshot,
    question: &Question<'_>,
    dimension: Dimension,
    limit: usize,
) -> Result<Vec<Item>> {
    let Dimension::Column(column) = dimension else {
        let counts = by_class(queries, snapshot, question, limit).await?;
        return Ok(counts.into_iter().map(|(value, count)| Item { value, count }).collect());
    };
    let window = [question.window];
    let rollup = Rollup {
        table: "breakdowns",
        condition: format!("dimension = '{column}'"),
        units: Unit::OF_BREAKDOWNS,
        start: |millis| format!("toDate({})", millis / DAY),
    };
    let of_raw = format!("toString({column})");
    let mut key = Key { of_rollup: "value".to_owned(), of_raw, only: None, whole: None };
    // First the values, then their visitors: most states belong to values that are not shown.
    let Some(rows) = question.rows(snapshot, &rollup, &key, &window, false) else { return Ok(Vec::new()) };
    let value = text::encoded("k");
    let sql =
        format!("SELECT {value} AS value FROM ({rows}) GROUP BY k ORDER BY sum(n) DESC, k LIMIT {limit}");
    let values = queries.query(&sql).fetch_all::<ValueRow>().await?;
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<String> = values.iter().map(|row| quoted(&row.value)).collect();
    key.only = Some(list.join(", "));
    let Some(rows) = question.rows(snapshot, &rollup, &key, &window, true) else { return Ok(Vec::new()) };
    let counted = added_up(&rows, "");
    let sql = format!("SELECT {value} AS value, total, unique FROM ({counted}) ORDER BY total DESC, k");
    let rows = queries.query(&sql).fetch_all::<ItemRow>().await?;
    let item = |ItemRow { value, total, unique }| Item { value, count: Count { total, unique } };
    Ok(rows.into_iter().map(item).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dimension_is_parsed_from_its_name() {
        assert_eq!(Dimension::parse("class").unwrap(), Dimension::Class);
        for name in DIMENSIONS {
            assert_eq!(Dimension::parse(name).unwrap(), Dimension::Column(name));
        }
        for bad in ["", "Country", "visitor", "user_agent", "country,os", "country'"] {
            assert!(Dimension::parse(bad).is_err(), "{bad}");
        }
    }
}
