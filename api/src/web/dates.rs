//! Dates of requests, and the window that they select.

use chrono::{DateTime, Datelike as _, Days, NaiveDate, NaiveTime, Utc};
use schemas::time::{InvalidTime, YEARS};
use service::http::{ApiError, Code};

/// Longest date, in bytes: seconds with nine decimals and an offset have 35.
const MAX_LEN: usize = 40;

/// Why a text is not an instant: a predicate for the name of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidInstant {
    /// As for every time.
    #[error(transparent)]
    Time(#[from] InvalidTime),
    /// A space is where a T or a plus sign belongs. An unencoded plus sign of a query is a space here.
    #[error("must have a T between date and time, and in a query a plus sign encoded as %2B")]
    Space,
}

impl InvalidInstant {
    /// Returns the fault of a text that could also be a day.
    fn of_date(self) -> String {
        match self {
            Self::Time(InvalidTime::Format) => {
                "must be a date such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z".to_owned()
            }
            other => other.to_string(),
        }
    }
}

/// A window of time, `[start, end)`.
///
/// Without an end it includes the newest clicks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// The first instant, not before the plan's retention.
    pub(crate) start: DateTime<Utc>,
    /// The first instant after it, not before `start`.
    pub(crate) end: Option<DateTime<Utc>>,
}

impl Window {
    /// Returns the whole retention window: from 00:00 UTC, as many days ago as the plan keeps.
    pub(crate) fn of_retention(retention_days: u64, now: DateTime<Utc>) -> Self {
        let first_day = now.date_naive() - Days::new(retention_days);
        Self { start: first_day.and_time(NaiveTime::MIN).and_utc(), end: None }
    }

    /// Parses `start_date` and `end_date` and clamps them to the retention window.
    ///
    /// A start before the retention window is not an error. With an end before it, the window is empty.
    ///
    /// # Errors
    /// `INVALID_DATE` when a date cannot be read, or the given start is after the given end.
    pub(crate) fn parse(
        start: Option<&str>,
        end: Option<&str>,
        retention_days: u64,
        now: DateTime<Utc>,
    ) -> Result<Self, ApiError> {
        let start =
            start.map(|text| parse_start(text).map_err(|fault| invalid("start_date", fault.of_date())));
        let end = end.map(|text| parse_end(text).map_err(|fault| invalid("end_date", fault.of_date())));
        let (start, end) = (start.transpose()?, end.transpose()?);
        if let (Some(start), Some(end)) = (start, &end)
            && end.is_before(start)
        {
            return Err(invalid("start_date", "must not be after end_date"));
        }
        let kept = Self::of_retention(retention_days, now);
        let start = start.map_or(kept.start, |start| start.max(kept.start));
        Ok(Self { start, end: end.map(|end| end.instant().max(start)) })
    }
}

fn invalid(parameter: &'static str, fault: impl Into<String>) -> ApiError {
    ApiError::invalid_fields(Code::InvalidDate, [(parameter.to_owned(), fault.into())])
}

/// Parses an instant, truncated to milliseconds; see [`schemas::time::parse`].
pub(crate) fn parse_instant(text: &str) -> Result<DateTime<Utc>, InvalidInstant> {
    if text.len() > MAX_LEN {
        return Err(InvalidTime::Format.into());
    }
    if let Some(repaired) = without_spaces(text) {
        schemas::time::parse(&repaired)?;
        return Err(InvalidInstant::Space);
    }
    Ok(schemas::time::to_millis(schemas::time::parse(text)?))
}

/// Returns a text that has spaces with what belongs there in a time.
fn without_spaces(text: &str) -> Option<String> {
    let (date, time) = text.split_at_checked("2027-01-31T".len()).unwrap_or((text, ""));
    text.contains(' ').then(|| date.replace(' ', "T") + &time.replace(' ', "+"))
}

/// A day stands for its first instant.
fn parse_start(text: &str) -> Result<DateTime<Utc>, InvalidInstant> {
    match parse_day(text)? {
        Some(day) => Ok(day.and_time(NaiveTime::MIN).and_utc()),
        None => parse_instant(text),
    }
}

fn parse_end(text: &str) -> Result<End, InvalidInstant> {
    match parse_day(text)? {
        Some(day) => Ok(End::AfterDay((day + Days::new(1)).and_time(NaiveTime::MIN).and_utc())),
        None => parse_instant(text).map(End::At),
    }
}

/// The end of a window: an instant, or the end of a day.
enum End {
    At(DateTime<Utc>),
    AfterDay(DateTime<Utc>),
}

impl End {
    /// The first instant that is not in the window.
    const fn instant(&self) -> DateTime<Utc> {
        match self {
            Self::At(instant) | Self::AfterDay(instant) => *instant,
        }
    }

    /// Whether a start is after this end. Where the end is a day, the next day's first instant is after it.
    fn is_before(&self, start: DateTime<Utc>) -> bool {
        match self {
            Self::At(instant) => start > *instant,
            Self::AfterDay(instant) => start >= *instant,
        }
    }
}

/// Reads `YYYY-MM-DD`; a text of another shape is no day and may be an instant.
fn parse_day(text: &str) -> Result<Option<NaiveDate>, InvalidTime> {
    let bytes = text.as_bytes();
    let shaped = bytes.len() == 10
        && bytes
            .iter()
            .enumerate()
            .all(|(at, byte)| if at == 4 || at == 7 { *byte == b'-' } else { byte.is_ascii_digit() });
    if !shaped {
        return Ok(None);
    }
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").map_err(|_| InvalidTime::Day)?;
    if YEARS.contains(&day.year()) { Ok(Some(day)) } else { Err(InvalidTime::Year) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use service::http::Code;

    use super::*;

    fn now() -> DateTime<Utc> {
        "2026-11-21T08:30:00Z".parse().unwrap()
    }

    fn window(start: Option<&str>, end: Option<&str>) -> Result<Window, ApiError> {
        Window::parse(start, end, 365, now())
    }

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn a_plans_window_starts_at_midnight() {
        assert_eq!(Window::of_retention(30, now()).start, at("2026-10-22T00:00:00Z"));
        assert_eq!(window(None, None).unwrap(), Window { start: at("2025-11-21T00:00:00Z"), end: None });
    }

    #[test]
    fn a_date_covers_its_day_and_a_time_is_an_instant() {
        let day = window(Some("2026-11-01"), Some("2026-11-01")).unwrap();
        assert_eq!(day, Window { start: at("2026-11-01T00:00:00Z"), end: Some(at("2026-11-02T00:00:00Z")) });
        let hour = window(Some("2026-11-01T01:00:00+01:00"), Some("2026-10-31t19:30:00.5-05:30")).unwrap();
        assert_eq!(
            hour,
            Window { start: at("2026-11-01T00:00:00Z"), end: Some(at("2026-11-01T01:00:00.5Z")) }
        );
    }

    #[test]
    fn a_window_is_clamped_to_retention() {
        let early = window(Some("2001-01-01"), Some("2026-11-02")).unwrap();
        assert_eq!(early.start, at("2025-11-21T00:00:00Z"));
        let before = window(Some("2001-01-01"), Some("2001-02-01")).unwrap();
        assert_eq!(before.end, Some(before.start), "empty, and no error");
    }

    #[test]
    fn a_start_after_the_end_is_rejected() {
        for (start, end) in [
            ("2026-11-02", "2026-11-01"),
            ("2001-01-02", "2001-01-01"),
            ("2026-11-01T00:00:00.001Z", "2026-11-01T00:00:00Z"),
        ] {
            let error = window(Some(start), Some(end)).unwrap_err();
            assert_eq!((error.code(), error.status().as_u16()), (Code::InvalidDate, 400));
        }
        assert!(window(Some("2026-11-01T00:00:00Z"), Some("2026-11-01T00:00:00Z")).is_ok(), "empty");
    }

    #[test]
    fn a_leap_second_is_within_its_day() {
        let leap = window(Some("2016-12-31T23:59:60Z"), None);
        assert_eq!(leap.unwrap().start, Window::of_retention(365, now()).start, "clamped");
        assert_eq!(parse_instant("2016-12-31T23:59:60.5Z"), Ok(at("2016-12-31T23:59:59.999Z")));
        assert!(window(Some("2016-12-31T23:59:60Z"), Some("2016-12-31")).is_ok());
        let error = window(Some("2026-11-20T14:53:60Z"), None).unwrap_err();
        assert_eq!(error.message(), "Start date must have a time of day from 00:00:00 to 23:59:59.");
    }

    #[test]
    fn the_error_has_the_reason() {
        const SPACE: &str = "must have a T between date and time, and in a query a plus sign encoded as %2B";
        for (bad, fault) in [
            ("yesterday", "must be a date such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z"),
            ("2026-02-30", "must be on a day of the calendar, such as 2027-01-31"),
            ("2026-02-30T00:00:00Z", "must be on a day of the calendar, such as 2027-01-31"),
            ("2026-01-01T24:00:00Z", "must have a time of day from 00:00:00 to 23:59:59"),
            ("2026-01-01T00:00:00+25:00", "must have an offset from -23:59 to +23:59"),
            ("0000-01-01", "must be in the years 0001 to 9999"),
            ("12026-01-01T00:00:00Z", "must be in the years 0001 to 9999"),
            ("next week", "must be a date such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z"),
            ("2026-02-30 00:00:00 01:00", "must be on a day of the calendar, such as 2027-01-31"),
            ("2026-01-01T00:00:00 01:00", SPACE),
            ("2026-01-01 00:00:00Z", SPACE),
        ] {
            for (parameter, error) in [("Start", window(Some(bad), None)), ("End", window(None, Some(bad)))] {
                let error = error.unwrap_err();
                assert_eq!(error.message(), format!("{parameter} date {fault}."), "{bad}");
            }
        }
    }

    #[test]
    fn an_invalid_date_names_its_parameter() {
        for bad in [
            "",
            " ",
            "yesterday",
            "2026-02-30",
            "2025-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-1-1",
            "0000-01-01",
            "0000-01-01T00:00:00Z",
            "0001-01-01T00:00:00+01:00",
            "+2026-01-01",
            "-2026-01-01",
            "12026-01-01T00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-01-01T00:00:00+25:00",
            "2026-01-01T00:00:00+01:60",
            "2026-01-01T00:00:00 01:00",
            "2026-01-01 00:00:00Z",
            "2026-01-01T00:00:00Z\n",
            "2026-01-01\0",
            "1767225600",
            "２０２６-01-01",
            &"9".repeat(10_000),
            &format!("2026-01-01T00:00:00.{}Z", "0".repeat(10_000)),
        ] {
            let error = window(Some(bad), None).unwrap_err();
            assert_eq!(error.code(), Code::InvalidDate, "{bad}");
            assert!(error.message().starts_with("Start date "), "{bad}");
            let error = window(None, Some(bad)).unwrap_err();
            assert!(error.message().starts_with("End date "), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn an_instant_round_trips_with_any_offset(
            millis in -62_135_596_800_000_i64..253_402_300_800_000,
            offset in -86_340_i32..=86_340,
        ) {
            let instant = DateTime::from_timestamp_millis(millis).unwrap();
            // Offsets are written in minutes.
            let zone = chrono::FixedOffset::east_opt(offset / 60 * 60).unwrap();
            let local = instant.with_timezone(&zone);
            prop_assume!(YEARS.contains(&local.year()));
            prop_assert_eq!(parse_instant(&local.to_rfc3339()), Ok(instant));
        }

        #[test]
        fn a_window_stays_within_retention(
            start in proptest::option::of(-800_000_i64..800_000),
            length in proptest::option::of(0_i64..800_000),
            retention in 1_u64..1_100,
        ) {
            let day = |offset: i64| (now() + chrono::TimeDelta::days(offset)).date_naive();
            let start_text = start.map(|offset| day(offset).to_string());
            let end_text = length.map(|length| day(start.unwrap_or(0) + length).to_string());
            // Other years are written with a sign or rejected.
            let common = |text: &Option<String>| {
                text.as_ref().is_none_or(|text| text.len() == 10 && !text.starts_with("0000"))
            };
            prop_assume!(common(&start_text) && common(&end_text));
            let window = Window::parse(start_text.as_deref(), end_text.as_deref(), retention, now()).unwrap();
            prop_assert!(window.start >= Window::of_retention(retention, now()).start);
            prop_assert!(window.end.is_none_or(|end| end >= window.start));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC*") {
            let _ = window(Some(&text), Some(&text));
        }

        #[test]
        fn parsing_a_date_never_panics(
            text in "[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2}))?",
        ) {
            let _ = window(Some(&text), Some(&text));
        }
    }
}
