//! The rows of a question: from rollups up to the last closed slice, from raw rows after it.

use std::fmt::Write as _;

use schemas::clickhouse::PRECISION;

use super::pieces::{DAY, Pieces, Range, Unit};
use super::question::Question;
use super::snapshot::Snapshot;

/// The key of a grouping, in a rollup and in raw rows.
pub(super) struct Key {
    pub(super) of_rollup: String,
    pub(super) of_raw: String,
    /// Only rows with these keys, as a list of literals.
    pub(super) only: Option<String>,
    /// A second key for the whole window, as a literal.
    pub(super) whole: Option<&'static str>,
}

impl Key {
    /// Returns the key of a column with the same name in both.
    pub(super) fn column(name: &str) -> Self {
        Self { of_rollup: name.to_owned(), of_raw: name.to_owned(), only: None, whole: None }
    }

    /// Returns the condition of [`Key::only`].
    fn condition(&self, expression: &str) -> String {
        self.only.as_ref().map(|list| format!(" AND {expression} IN ({list})")).unwrap_or_default()
    }
}

/// A rollup.
pub(super) struct Rollup {
    pub(super) table: &'static str,
    /// A further condition on its rows.
    pub(super) condition: String,
    /// Its units, the coarsest first.
    pub(super) units: &'static [Unit],
    /// Formats an instant, in milliseconds since 1970, for its column `start`.
    pub(super) start: fn(i64) -> String,
}

impl Question<'_> {
    /// Returns a subquery with columns `k` (the key), `n` (clicks) and optionally `v` (states of visitors); `None` if
    /// there can be no rows.
    ///
    /// `ranges` are the window, or the parts that the key distinguishes.
    pub(super) fn rows(
        &self,
        snapshot: &Snapshot,
        rollup: &Rollup,
        key: &Key,
        ranges: &[Range],
        with_visitors: bool,
    ) -> Option<String> {
        if self.window.is_empty() {
            return None;
        }
        // Slices that were open at `taken_until` contain later clicks.
        let closed_until = match self.taken_until {
            Some(instant) => snapshot.closed_until.min(day_of(instant)),
            None => snapshot.closed_until,
        };
        let closed = i64::from(closed_until) * DAY;
        // The broker takes no click before it happens, so closed slices contain nothing later. A month has rows once
        // its last day is closed, so later months must not be used.
        let pieces = Pieces::of(ranges.iter().map(|range| range.before(closed)), rollup.units);
        let mut branches = Vec::new();
        let closed_slices = self.of_rollup(snapshot, closed_until, rollup, key, &pieces, with_visitors);
        branches.extend(closed_slices);
        let raw = |when: String| self.of_raw(snapshot, key, &when, with_visitors);
        if let Some(first) = pieces.edges.first() {
            branches.push(raw(format!(
                "broker_ts >= {} AND broker_ts < {} AND {}",
                instant(first.start),
                instant(closed),
                any_of(&pieces.edges, "occurred_at", instant)
            )));
        }
        let mut open = format!(
            "broker_ts >= {} AND {}",
            instant(closed.max(self.window.start)),
            any_of(&[self.window], "occurred_at", instant)
        );
        // Writing into a String cannot fail.
        if let Some(until) = self.taken_until {
            let _ = write!(open, " AND broker_ts <= {}", instant(until));
        }
        open.push_str(&and_before(snapshot.raw_until));
        branches.push(raw(open));
        Some(branches.join("\nUNION ALL\n"))
    }

    /// Returns the rows of closed slices for whole units.
    fn of_rollup(
        &self,
        snapshot: &Snapshot,
        closed_until: u16,
        rollup: &Rollup,
        key: &Key,
        pieces: &Pieces,
        with_visitors: bool,
    ) -> Option<String> {
        let parts = whole_units(pieces, rollup)?;
        let (key_of_row, units) = match key.whole {
            None => (key.of_rollup.clone(), parts),
            // The whole uses the coarsest units: a year is 12 states to merge instead of 365.
            Some(whole) => {
                let closed = self.window.before(i64::from(closed_until) * DAY);
                let of_whole = whole_units(&Pieces::of([closed], rollup.units), rollup)?;
                let keys = format!(
                    "arrayJoin(arrayConcat(if({parts}, [{}], []), if({of_whole}, [{whole}], [])))",
                    key.of_rollup
                );
                (keys, format!("{parts} OR {of_whole}"))
            }
        };
        Some(format!(
            "SELECT {key} AS k, clicks AS n{visitors} FROM {table}
             WHERE workspace_id = toUUID('{workspace}') AND {of} AND {condition} AND {class} AND ({units})
               AND slice >= toDate({first}) AND slice < toDate({closed_until}) AND {active}{only}",
            key = key_of_row,
            visitors = if with_visitors { ", visitors AS v" } else { "" },
            table = snapshot.tables.of(rollup.table),
            workspace = self.workspace,
            of = self.of.of_rollups(self.workspace),
            condition = rollup.condition,
            class = self.classes.condition(),
            first = day_of(self.window.start),
            active = are_active(&snapshot.versions),
            only = key.condition(&key.of_rollup),
        ))
    }

    /// Returns the raw rows of some ranges.
    fn of_raw(&self, snapshot: &Snapshot, key: &Key, when: &str, with_visitors: bool) -> String {
        let visitors = format!(", uniqCombined64State({PRECISION})(visitor) AS v");
        let rows = format!(
            "SELECT {key} AS k, count() AS n{visitors} FROM {clicks}
             WHERE workspace_id = toUUID('{workspace}') AND {of} AND {class} AND {when}{only} GROUP BY k",
            key = key.of_raw,
            visitors = if with_visitors { &visitors } else { "" },
            clicks = snapshot.tables.of("clicks"),
            workspace = self.workspace,
            of = self.of.of_raw(self.workspace),
            class = self.classes.condition(),
            only = key.condition(&key.of_raw),
        );
        let Some(whole) = key.whole else { return rows };
        format!("SELECT arrayJoin([k, {whole}]) AS k, * EXCEPT k FROM ({rows})")
    }
}

/// Returns the statement that adds up rows by their key. `after` is appended: order and limit.
///
/// Above the exact range the number of visitors is an estimate, bounded by the number of clicks.
pub(super) fn added_up(rows: &str, after: &str) -> String {
    format!(
        "SELECT k, sum(n) AS total, least(uniqCombined64Merge({PRECISION})(v), total) AS unique
         FROM ({rows}) GROUP BY k {after}"
    )
}

/// Returns the condition for the rows of whole units; `None` without whole units.
fn whole_units(pieces: &Pieces, rollup: &Rollup) -> Option<String> {
    let whole = pieces.whole.iter().filter(|(_, ranges)| !ranges.is_empty());
    let of_unit = |(unit, ranges): &(Unit, Vec<Range>)| {
        format!("(unit = '{}' AND {})", unit.as_str(), any_of(ranges, "start", rollup.start))
    };
    let units: Vec<String> = whole.map(of_unit).collect();
    (!units.is_empty()).then(|| format!("({})", units.join(" OR ")))
}

/// Returns the condition for the active version of each slice: one version for most, and the exceptions.
fn are_active(versions: &[(u16, u64)]) -> String {
    let mut sorted: Vec<u64> = versions.iter().map(|(_, version)| *version).collect();
    sorted.sort_unstable();
    let common = sorted.chunk_by(|one, other| one == other).max_by_key(|same| same.len());
    let common = common.and_then(|same| same.first()).copied().unwrap_or_default();
    let (slices, others): (Vec<u16>, Vec<u64>) =
        versions.iter().filter(|(_, version)| *version != common).copied().unzip();
    if slices.is_empty() {
        return format!("version = {common}");
    }
    format!("version = transform(toUInt16(slice), {slices:?}, {others:?}, toUInt64({common}))")
}

/// Returns the condition that a column is in one of the ranges.
pub(super) fn any_of(ranges: &[Range], column: &str, literal: impl Fn(i64) -> String) -> String {
    let of_one = |range: &Range| {
        format!("({column} >= {} AND {column} < {})", literal(range.start), literal(range.end))
    };
    let all: Vec<String> = ranges.iter().map(of_one).collect();
    if all.is_empty() { "false".to_owned() } else { format!("({})", all.join(" OR ")) }
}

/// Returns a further condition on raw rows: those before an instant, in milliseconds since 1970, or all.
pub(super) fn and_before(raw_until: Option<i64>) -> String {
    raw_until.map(|until| format!(" AND broker_ts < {}", instant(until))).unwrap_or_default()
}

/// Returns an expression for a `DateTime64` from milliseconds since 1970.
pub(super) fn instant(millis: i64) -> String {
    format!("fromUnixTimestamp64Milli({millis}, 'UTC')")
}

/// Returns the day of an instant, in days since 1970.
fn day_of(millis: i64) -> u16 {
    u16::try_from(millis.div_euclid(DAY)).unwrap_or(if millis < 0 { 0 } else { u16::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_versions_are_a_default_and_exceptions() {
        assert_eq!(are_active(&[(1, 1), (2, 1)]), "version = 1");
        assert_eq!(
            are_active(&[(1, 1), (2, 7), (3, 1), (4, 9)]),
            "version = transform(toUInt16(slice), [2, 4], [7, 9], toUInt64(1))"
        );
        assert_eq!(are_active(&[]), "version = 0");
    }
}
