//! The points of a series, by the calendar and clock of a time zone.

use chrono::{DateTime, Datelike as _, Days, Months, NaiveDate, NaiveTime, Offset as _, TimeZone as _, Utc};
use chrono_tz::Tz;
use service::http::ApiError;

/// The most points of one series.
const MOST_POINTS: usize = 1_000;

const MINUTE: i64 = 60;
const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// The length of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interval {
    Minute,
    Hour,
    Day,
    Month,
}

impl Interval {
    const NAMED: [(&str, Self); 4] =
        [("minute", Self::Minute), ("hour", Self::Hour), ("day", Self::Day), ("month", Self::Month)];

    /// Parses a name.
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        Self::NAMED
            .into_iter()
            .find(|(name, _)| *name == text)
            .map(|(_, interval)| interval)
            .ok_or_else(|| ApiError::invalid_field("interval", "must be minute, hour, day or month"))
    }
}

/// Parses the name of a time zone; the default is UTC.
pub(crate) fn parse_zone(text: Option<&str>) -> Result<Tz, ApiError> {
    let Some(text) = text else { return Ok(Tz::UTC) };
    text.parse()
        .map_err(|_| ApiError::invalid_field("timezone", "must be an IANA time zone, such as Europe/Berlin"))
}

/// Returns the beginnings of the points of `[start, end)`, in seconds since 1970, ascending.
///
/// The first point contains `start` and may begin before it. A day of 23 or 25 hours is one point; an hour that the
/// clock repeats is two.
///
/// # Errors
/// 400 when there are too many points for one answer.
pub(crate) fn starts(
    interval: Interval,
    zone: Tz,
    start: DateTime<Utc>,
    end: DateTime<Utc>,
) -> Result<Vec<i64>, ApiError> {
    if start >= end {
        return Ok(Vec::new());
    }
    let mut points = Points { interval, zone, next: first(interval, zone, start.timestamp()) };
    // A fraction of a second at the end belongs to its point.
    let end = end.timestamp() + i64::from(end.timestamp_subsec_nanos() > 0);
    let mut starts = Vec::new();
    while points.next < end {
        if starts.len() == MOST_POINTS {
            let message =
                "gives more than 1,000 points for this window: choose a longer interval or a shorter window";
            return Err(ApiError::invalid_field("interval", message));
        }
        starts.push(points.advance());
    }
    Ok(starts)
}

/// Returns whether all points but the first, which the window cuts, begin on a full hour of UTC.
pub(crate) fn are_on_the_hour(starts: &[i64]) -> bool {
    starts.iter().skip(1).all(|start| start % HOUR == 0)
}

struct Points {
    interval: Interval,
    zone: Tz,
    next: i64,
}

impl Points {
    /// Returns the present point and advances.
    fn advance(&mut self) -> i64 {
        let current = self.next;
        self.next = match self.interval {
            Interval::Minute => current + MINUTE,
            Interval::Hour => {
                let clock = current + offset(self.zone, current);
                let full = current + HOUR - clock.rem_euclid(HOUR);
                // A change of the clock within the hour ends the point.
                change(self.zone, current, full).unwrap_or(full)
            }
            Interval::Day => self.after(|date| date.checked_add_days(Days::new(1))),
            Interval::Month => self.after(|date| date.checked_add_months(Months::new(1))),
        };
        current
    }

    /// The beginning of the next date that begins after this point: some zones skipped a day.
    fn after(&self, later: impl Fn(NaiveDate) -> Option<NaiveDate>) -> i64 {
        let mut date = date(self.zone, self.next);
        if self.interval == Interval::Month {
            date = date.with_day(1).unwrap_or(date);
        }
        while let Some(following) = later(date) {
            let start = beginning(self.zone, following);
            if start > self.next {
                return start;
            }
            date = following;
        }
        // The last date.
        i64::MAX
    }
}

/// Returns the beginning of the point that contains an instant.
fn first(interval: Interval, zone: Tz, at: i64) -> i64 {
    match interval {
        Interval::Minute => at - at.rem_euclid(MINUTE),
        Interval::Hour => {
            let full = at - (at + offset(zone, at)).rem_euclid(HOUR);
            change(zone, full, at + 1).unwrap_or(full)
        }
        Interval::Day => beginning(zone, date(zone, at)),
        Interval::Month => {
            let date = date(zone, at);
            beginning(zone, date.with_day(1).unwrap_or(date))
        }
    }
}

/// Returns the zone's offset from UTC, in seconds.
fn offset(zone: Tz, at: i64) -> i64 {
    let utc = DateTime::from_timestamp(at, 0).unwrap_or_default().naive_utc();
    i64::from(zone.offset_from_utc_datetime(&utc).fix().local_minus_utc())
}

/// Returns the zone's date at an instant.
fn date(zone: Tz, at: i64) -> NaiveDate {
    DateTime::from_timestamp(at, 0).unwrap_or_default().with_timezone(&zone).date_naive()
}

/// Returns the first change of the clock after `from` and before `to`.
///
/// There must be at most one change between them.
fn change(zone: Tz, from: i64, to: i64) -> Option<i64> {
    let before = offset(zone, from);
    (offset(zone, to - 1) != before).then(|| earliest(from, to - 1, |at| offset(zone, at) != before))
}

/// Returns the first instant of a date, which may have no midnight, or two.
fn beginning(zone: Tz, date: NaiveDate) -> i64 {
    let midnight = date.and_time(NaiveTime::MIN);
    if let Some(found) = zone.from_local_datetime(&midnight).earliest() {
        return found.timestamp();
    }
    // The clock was put forward over midnight: the date begins at the change.
    let utc = midnight.and_utc().timestamp();
    earliest(utc - DAY, utc + DAY, |at| self::date(zone, at) >= date)
}

/// Returns the first second after `from`, up to `to`, for which `is_so` is true; it must stay true.
fn earliest(mut from: i64, mut to: i64, is_so: impl Fn(i64) -> bool) -> i64 {
    while to - from > 1 {
        let middle = from + (to - from) / 2;
        if is_so(middle) { to = middle } else { from = middle }
    }
    to
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn points(interval: Interval, zone: &str, start: &str, end: &str) -> Vec<String> {
        starts(interval, zone.parse().unwrap(), at(start), at(end))
            .unwrap()
            .into_iter()
            .map(|start| DateTime::from_timestamp(start, 0).unwrap().format("%dT%H:%M").to_string())
            .collect()
    }

    #[test]
    fn a_day_has_23_24_or_25_hours() {
        let berlin = |start, end| points(Interval::Hour, "Europe/Berlin", start, end);
        assert_eq!(berlin("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z").len(), 23);
        assert_eq!(berlin("2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z").len(), 25);
        let days = points(Interval::Day, "Europe/Berlin", "2026-10-23T22:00:00Z", "2026-10-26T23:00:00Z");
        assert_eq!(days, ["23T22:00", "24T22:00", "25T23:00"]);
        let days = points(Interval::Day, "Europe/Berlin", "2026-03-27T23:00:00Z", "2026-03-30T22:00:00Z");
        assert_eq!(days, ["27T23:00", "28T23:00", "29T22:00"]);
    }

    #[test]
    fn the_points_cover_the_window() {
        assert_eq!(
            points(Interval::Day, "UTC", "2026-11-01T12:00:00Z", "2026-11-03T00:00:00.001Z"),
            ["01T00:00", "02T00:00", "03T00:00"]
        );
        assert_eq!(
            points(Interval::Month, "America/New_York", "2026-11-01T03:59:59Z", "2026-12-01T05:00:00Z"),
            ["01T04:00", "01T04:00"],
            "October and November"
        );
        assert!(points(Interval::Hour, "UTC", "2026-11-01T12:00:00Z", "2026-11-01T12:00:00Z").is_empty());
    }

    #[test]
    fn a_day_without_midnight_begins_at_the_clock_change() {
        // Cairo goes from 23:59:59 to 01:00:00.
        let days = points(Interval::Day, "Africa/Cairo", "2026-04-23T00:00:00Z", "2026-04-24T12:00:00Z");
        assert_eq!(days, ["22T22:00", "23T22:00"]);
        // Havana has the hour after midnight twice.
        let days = points(Interval::Day, "America/Havana", "2026-10-31T12:00:00Z", "2026-11-02T12:00:00Z");
        assert_eq!(days, ["31T04:00", "01T04:00", "02T05:00"]);
        // Apia left a day out: 2011-12-29 is followed by the 31st.
        let days = points(Interval::Day, "Pacific/Apia", "2011-12-29T12:00:00Z", "2011-12-31T12:00:00Z");
        assert_eq!(days, ["29T10:00", "30T10:00", "31T10:00"]);
    }

    #[test]
    fn part_hour_zones_are_recognized() {
        let on_the_hour = |interval, zone: &str| {
            let (start, end) = (at("2026-04-03T00:00:00Z"), at("2026-04-08T00:00:00Z"));
            are_on_the_hour(&starts(interval, zone.parse().unwrap(), start, end).unwrap())
        };
        for zone in ["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "Asia/Kathmandu"] {
            let whole = matches!(zone, "UTC" | "Europe/Berlin");
            assert_eq!(on_the_hour(Interval::Day, zone), whole, "{zone}");
            assert_eq!(on_the_hour(Interval::Hour, zone), whole, "{zone}");
        }
        // On the hour of UTC in summer and not in winter, by half an hour.
        assert!(!on_the_hour(Interval::Hour, "Australia/Lord_Howe"));
        let hours =
            points(Interval::Hour, "Australia/Lord_Howe", "2026-04-04T13:30:00Z", "2026-04-04T17:00:00Z");
        assert_eq!(hours, ["04T13:00", "04T14:00", "04T15:00", "04T15:30", "04T16:30"]);
    }

    #[test]
    fn more_than_a_thousand_points_are_rejected() {
        let end = at("2026-11-21T00:00:00Z");
        for (interval, most) in [
            (Interval::Minute, TimeDelta::minutes(1_000)),
            (Interval::Hour, TimeDelta::hours(1_000)),
            (Interval::Day, TimeDelta::days(1_000)),
        ] {
            assert_eq!(starts(interval, Tz::UTC, end - most, end).unwrap().len(), MOST_POINTS);
            assert!(starts(interval, Tz::UTC, end - most - TimeDelta::milliseconds(1), end).is_err());
        }
        for interval in [Interval::Minute, Interval::Hour, Interval::Day, Interval::Month] {
            assert!(starts(interval, Tz::UTC, end, at("9999-12-31T23:59:59Z")).is_err());
        }
    }

    #[test]
    fn an_unknown_zone_or_interval_is_rejected() {
        assert_eq!(parse_zone(None).unwrap(), Tz::UTC);
        assert!(parse_zone(Some("America/Argentina/Buenos_Aires")).is_ok());
        for bad in ["", "europe/berlin", "Europe/Atlantis", "+01:00", "CEST", "UTC\0", "../etc/passwd"] {
            assert!(parse_zone(Some(bad)).is_err(), "{bad}");
        }
        for bad in ["", "Day", "week", "days", "1h"] {
            assert!(Interval::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn the_points_of_any_zone_follow_its_clock(
            zone in (0..chrono_tz::TZ_VARIANTS.len()).prop_map(|place| chrono_tz::TZ_VARIANTS[place]),
            start in 0_i64..4_102_444_800,
            length in 0_i64..400 * DAY,
            interval in prop_oneof![Just(Interval::Hour), Just(Interval::Day), Just(Interval::Month)],
        ) {
            let end = if interval == Interval::Hour { start + length / 10 } else { start + length };
            let instant = |seconds| DateTime::from_timestamp(seconds, 0).unwrap();
            let starts = starts(interval, zone, instant(start), instant(end)).unwrap();
            prop_assert_eq!(starts.is_empty(), start == end);
            prop_assert!(starts.windows(2).all(|pair| pair[0] < pair[1]));
            if let (Some(first), Some(last)) = (starts.first(), starts.last()) {
                prop_assert!(*first <= start && *last < end);
                prop_assert!(starts.get(1).is_none_or(|second| *second > start));
            }
            for pair in starts.windows(2) {
                let (from, to) = (instant(pair[0]).with_timezone(&zone), instant(pair[1] - 1).with_timezone(&zone));
                match interval {
                    Interval::Month => prop_assert_eq!(from.month(), to.month()),
                    // Where clocks go back over midnight, a day contains a part of the previous day.
                    Interval::Day => prop_assert!(from.date_naive() == to.date_naive()),
                    _ => prop_assert!(pair[1] - pair[0] <= HOUR),
                }
            }
        }
    }
}
