//! Splits a window into whole units of the rollups, and the rest, which raw rows answer.

use chrono::{DateTime, Datelike as _, NaiveDate, NaiveTime};

/// The end of time: later clicks are not counted, and an open window ends here.
///
/// 2100-01-01, in milliseconds since 1970: the first instant of a month, and within what a `DateTime` holds.
pub(crate) const END: i64 = 4_102_444_800_000;

/// Milliseconds of an hour and of a day.
pub(crate) const HOUR: i64 = 3_600_000;
pub(crate) const DAY: i64 = 24 * HOUR;

/// A range `[start, end)`: of time, in milliseconds since 1970, or of other numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: i64,
    pub(crate) end: i64,
}

impl Range {
    /// Returns whether it is empty.
    pub(crate) const fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Returns the part before an instant.
    pub(crate) fn before(self, instant: i64) -> Self {
        Self { end: self.end.min(instant), ..self }
    }
}

/// The unit of time of a row of a rollup, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Hour,
    Day,
    Month,
}

impl Unit {
    /// The units of the counts, the coarsest first.
    pub(crate) const OF_COUNTS: &[Self] = &[Self::Month, Self::Day, Self::Hour];

    /// The units of the breakdowns.
    pub(crate) const OF_BREAKDOWNS: &[Self] = &[Self::Month, Self::Day];

    /// Returns the name in column `unit`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// Returns the beginning of the unit that contains `at`.
    fn floor(self, at: i64) -> i64 {
        match self {
            Self::Hour => at - at.rem_euclid(HOUR),
            Self::Day => at - at.rem_euclid(DAY),
            Self::Month => first_of_month(at, 0),
        }
    }

    /// Returns the first beginning of a unit at or after `at`.
    fn ceil(self, at: i64) -> i64 {
        let floor = self.floor(at);
        match self {
            _ if floor == at => at,
            Self::Hour => floor + HOUR,
            Self::Day => floor + DAY,
            Self::Month => first_of_month(at, 1),
        }
    }
}

/// Returns the beginning of the month `later` months after the one that contains `at`.
fn first_of_month(at: i64, later: i32) -> i64 {
    // Every instant from 1970 to END has a date.
    let date = DateTime::from_timestamp_millis(at).unwrap_or_default().date_naive();
    let months = date.year() * 12 + date.month0().cast_signed() + later;
    let month = months.rem_euclid(12).cast_unsigned() + 1;
    let first = NaiveDate::from_ymd_opt(months.div_euclid(12), month, 1).unwrap_or_default();
    first.and_time(NaiveTime::MIN).and_utc().timestamp_millis()
}

/// Disjoint ranges of time, by the rows that answer for them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Pieces {
    /// Whole units, by unit; ascending and not adjacent.
    pub(crate) whole: Vec<(Unit, Vec<Range>)>,
    /// The rest.
    pub(crate) edges: Vec<Range>,
}

impl Pieces {
    /// Splits each range separately, so that no whole unit crosses a border between two of them.
    ///
    /// `units` are the units of the rollup, the coarsest first. Without units everything is rest.
    pub(crate) fn of(ranges: impl IntoIterator<Item = Range>, units: &[Unit]) -> Self {
        let mut pieces = Self::default();
        pieces.whole.extend(units.iter().map(|unit| (*unit, Vec::new())));
        for range in ranges {
            pieces.cut(range, units);
        }
        pieces
    }

    fn cut(&mut self, range: Range, units: &[Unit]) {
        if range.is_empty() {
            return;
        }
        let Some((unit, finer)) = units.split_first() else { return append(&mut self.edges, range) };
        let whole = Range { start: unit.ceil(range.start), end: unit.floor(range.end) };
        if whole.is_empty() {
            return self.cut(range, finer);
        }
        self.cut(Range { end: whole.start, ..range }, finer);
        if let Some((_, ranges)) = self.whole.iter_mut().find(|(other, _)| other == unit) {
            append(ranges, whole);
        }
        self.cut(Range { start: whole.end, ..range }, finer);
    }
}

/// Appends a range, merged with the last one if they are adjacent.
fn append(ranges: &mut Vec<Range>, range: Range) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> i64 {
        text.parse::<DateTime<chrono::Utc>>().unwrap().timestamp_millis()
    }

    fn range(start: &str, end: &str) -> Range {
        Range { start: at(start), end: at(end) }
    }

    #[test]
    fn a_window_is_split_into_months_days_hours_and_rest() {
        let window = range("2026-01-30T21:59:59.999Z", "2026-04-02T01:00:00.001Z");
        let pieces = Pieces::of([window], Unit::OF_COUNTS);
        assert_eq!(
            pieces.whole,
            [
                (Unit::Month, vec![range("2026-02-01T00:00:00Z", "2026-04-01T00:00:00Z")]),
                (
                    Unit::Day,
                    vec![
                        range("2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z"),
                        range("2026-04-01T00:00:00Z", "2026-04-02T00:00:00Z")
                    ]
                ),
                (
                    Unit::Hour,
                    vec![
                        range("2026-01-30T22:00:00Z", "2026-01-31T00:00:00Z"),
                        range("2026-04-02T00:00:00Z", "2026-04-02T01:00:00Z")
                    ]
                ),
            ]
        );
        assert_eq!(
            pieces.edges,
            [
                range("2026-01-30T21:59:59.999Z", "2026-01-30T22:00:00Z"),
                range("2026-04-02T01:00:00Z", "2026-04-02T01:00:00.001Z")
            ]
        );
    }

    #[test]
    fn the_end_is_the_start_of_a_month() {
        assert_eq!(END, at("2100-01-01T00:00:00Z"));
        assert_eq!(Unit::Month.floor(END), END);
    }

    #[test]
    fn months_match_the_calendar() {
        for day in 0..END / DAY {
            let date = DateTime::from_timestamp_millis(day * DAY).unwrap().date_naive();
            assert_eq!(Unit::Month.floor(day * DAY + 17), (day - i64::from(date.day0())) * DAY, "{date}");
        }
    }

    /// Instants at, near and between the borders of units.
    fn instant() -> impl Strategy<Value = i64> {
        let hours = 0..END / HOUR;
        prop_oneof![
            0..=END,
            hours.clone().prop_map(|hour| hour * HOUR),
            (hours.clone(), -2_i64..=2).prop_map(|(hour, off)| (hour * HOUR + off).clamp(0, END)),
            (hours, -1_i64..=1).prop_map(|(hour, off)| (Unit::Month.floor(hour * HOUR) + off).max(0)),
            Just(END),
        ]
    }

    fn overlap(one: Range, other: Range) -> bool {
        one.start < other.end && other.start < one.end
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn the_pieces_partition_the_window(
            mut borders in proptest::collection::vec(instant(), 2..8), by_day in any::<bool>(),
        ) {
            borders.sort_unstable();
            let units = if by_day { Unit::OF_BREAKDOWNS } else { Unit::OF_COUNTS };
            let ranges = borders.windows(2).map(|pair| Range { start: pair[0], end: pair[1] });
            let pieces = Pieces::of(ranges, units);
            let mut all: Vec<Range> = pieces.edges.clone();
            for (unit, ranges) in &pieces.whole {
                for range in ranges {
                    prop_assert_eq!((unit.floor(range.start), unit.floor(range.end)), (range.start, range.end));
                }
                all.extend(ranges);
            }
            prop_assert!(all.iter().all(|range| !range.is_empty()));
            for (place, one) in all.iter().enumerate() {
                prop_assert!(all[..place].iter().all(|other| !overlap(*one, *other)));
            }
            let length: i64 = all.iter().map(|range| range.end - range.start).sum();
            prop_assert_eq!(length, borders[borders.len() - 1] - borders[0]);
            let inside = |range: &Range| range.start >= borders[0] && range.end <= borders[borders.len() - 1];
            prop_assert!(all.iter().all(inside));
            let most = if by_day { 2 * DAY } else { 2 * HOUR };
            // Two edges of the same unit touch where a border of the ranges is within it, up to eight times.
            prop_assert!(pieces.edges.iter().all(|edge| edge.end - edge.start < 4 * most));
        }
    }
}
