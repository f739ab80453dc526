//! Times in requests, messages and answers. Times are written as RFC 3339, UTC, milliseconds.

use std::ops::RangeInclusive;

use chrono::{DateTime, Datelike as _, NaiveDate, SecondsFormat, Timelike as _, Utc};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

use crate::text::Text;

/// The years that can be written with four digits.
pub const YEARS: RangeInclusive<i32> = 1..=9999;

/// Nanoseconds of a second; chrono writes a leap second as the one before it with more of them.
const SECOND: u32 = 1_000_000_000;

/// Formats a time as in every message and answer: `2026-11-21T08:00:00.123Z`.
pub fn text(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Truncates a time to milliseconds, so that every database stores it unchanged.
pub fn to_millis(time: DateTime<Utc>) -> DateTime<Utc> {
    // A representable time stays representable when truncated.
    DateTime::from_timestamp_millis(time.timestamp_millis()).unwrap_or(time)
}

/// Why a text is not a time: a predicate for the name of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTime {
    /// It is not RFC 3339.
    #[error("must be a time such as 2027-01-31T12:00:00Z")]
    Format,
    /// The month has no such day, or the year no such month.
    #[error("must be on a day of the calendar, such as 2027-01-31")]
    Day,
    /// The day has no such hour, minute or second.
    #[error("must have a time of day from 00:00:00 to 23:59:59")]
    TimeOfDay,
    /// No time is that far from UTC.
    #[error("must have an offset from -23:59 to +23:59")]
    Offset,
    /// It is not in [`YEARS`], as UTC.
    #[error("must be in the years 0001 to 9999")]
    Year,
}

/// Parses a time from outside: RFC 3339 with any offset and precision.
///
/// A leap second, 23:59:60 UTC on 30 June or 31 December, becomes the last millisecond before it: 23:59:59.999. Neither
/// databases nor most parsers know leap seconds. The time stays on its day, and not behind a time of the next second.
/// Which of these days had a leap second is not checked, because future ones are announced only half a year before.
///
/// # Errors
/// The reason, also for second 60 anywhere else.
pub fn parse(text: &str) -> Result<DateTime<Utc>, InvalidTime> {
    let time = match parse_canonical(text.as_bytes()) {
        Some(time) => time,
        None => DateTime::parse_from_rfc3339(text).map_err(|_| reason(text))?.to_utc(),
    };
    if !YEARS.contains(&time.year()) {
        return Err(InvalidTime::Year);
    }
    if time.nanosecond() < SECOND {
        return Ok(time);
    }
    let is_leap_second = matches!((time.month(), time.day()), (6, 30) | (12, 31))
        && (time.hour(), time.minute(), time.second()) == (23, 59, 59);
    time.with_nanosecond(SECOND - 1_000_000).filter(|_| is_leap_second).ok_or(InvalidTime::TimeOfDay)
}

/// Returns why the parser does not read a text.
fn reason(text: &str) -> InvalidTime {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let year = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    // Other years than those of four digits are written with a sign (ISO 8601).
    let has_other_year = year > 4 || (year == 4 && unsigned.len() < text.len());
    let text = if has_other_year { &unsigned[year - 4..] } else { text };
    let Some((date, time, offset)) = fields(text.as_bytes()) else { return InvalidTime::Format };
    if has_other_year {
        return InvalidTime::Year;
    }
    let [year, month, day] = date;
    let [hour, minute, second] = time;
    if i32::try_from(year).ok().and_then(|year| NaiveDate::from_ymd_opt(year, month, day)).is_none() {
        InvalidTime::Day
    } else if hour > 23 || minute > 59 || second > 60 {
        InvalidTime::TimeOfDay
    } else if offset.is_some_and(|[hours, minutes]| hours > 23 || minutes > 59) {
        InvalidTime::Offset
    } else {
        InvalidTime::Format
    }
}

/// The numbers of a date, a time of day, and an offset other than `Z`.
type Fields = ([u32; 3], [u32; 3], Option<[u32; 2]>);

/// Reads the fields of a text that has the form of RFC 3339, whatever their values.
fn fields(text: &[u8]) -> Option<Fields> {
    let has_shape = |text: &[u8], shape: &[u8]| {
        text.len() == shape.len()
            && std::iter::zip(text, shape).all(|(actual, expected)| match expected {
                b'0' => actual.is_ascii_digit(),
                b'T' => matches!(actual, b'T' | b't' | b' '),
                b'+' => matches!(actual, b'+' | b'-'),
                other => actual == other,
            })
    };
    let (start, rest) = text.split_at_checked(b"0000-00-00T00:00:00".len())?;
    let offset = match rest.strip_prefix(b".") {
        None => rest,
        Some(rest) => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            rest.get(digits..).filter(|_| digits > 0)?
        }
    };
    let is_utc = matches!(offset, b"Z" | b"z");
    if !has_shape(start, b"0000-00-00T00:00:00") || !(is_utc || has_shape(offset, b"+00:00")) {
        return None;
    }
    let of_start = |from, to| number(&start[from..to]);
    Some((
        [of_start(0, 4), of_start(5, 7), of_start(8, 10)],
        [of_start(11, 13), of_start(14, 16), of_start(17, 19)],
        (!is_utc).then(|| [number(&offset[1..3]), number(&offset[4..6])]),
    ))
}

/// Reads digits; the value of other bytes has no meaning.
fn number(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit.wrapping_sub(b'0')))
}

/// `#[serde(with = "schemas::time::millis")]`
pub mod millis {
    use super::{DateTime, Deserialize as _, Deserializer, Error as _, Serializer, Text, Utc, parse, text};

    /// Serializes as RFC 3339 with milliseconds.
    pub fn serialize<S: Serializer>(time: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text(*time))
    }

    /// Deserializes what [`parse`] reads.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DateTime<Utc>, D::Error> {
        parse(Text::deserialize(deserializer)?.as_ref()).map_err(D::Error::custom)
    }
}

/// Parses exactly the format of [`text`], several times faster than a full RFC 3339 parser.
fn parse_canonical(text: &[u8]) -> Option<DateTime<Utc>> {
    // 2026-11-21T08:00:00.123Z
    const SHAPE: &[u8; 24] = b"0000-00-00T00:00:00.000Z";
    let text: &[u8; 24] = text.try_into().ok()?;
    let has_shape = std::iter::zip(text, SHAPE).all(|(actual, expected)| match expected {
        b'0' => actual.is_ascii_digit(),
        other => actual == other,
    });
    let number = |from: usize, to: usize| number(&text[from..to]);
    let date = NaiveDate::from_ymd_opt(i32::try_from(number(0, 4)).ok()?, number(5, 7), number(8, 10));
    // None for a leap second, which the general parser reads.
    let time = date.filter(|_| has_shape)?.and_hms_milli_opt(
        number(11, 13),
        number(14, 16),
        number(17, 19),
        number(20, 23),
    );
    Some(time?.and_utc())
}

/// `#[serde(with = "schemas::time::optional_millis")]`, for fields that may be null.
pub mod optional_millis {
    use super::{DateTime, Deserialize, Deserializer, Serializer, Utc};

    /// Serializes as RFC 3339 with milliseconds, or null.
    pub fn serialize<S: Serializer>(time: &Option<DateTime<Utc>>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::millis::serialize(time, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Deserializes what [`parse`](super::parse) reads, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<DateTime<Utc>>, D::Error> {
        #[derive(Deserialize)]
        struct Wrapped(#[serde(with = "super::millis")] DateTime<Utc>);
        Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|Wrapped(time)| time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_any_offset_and_precision() {
        for (given, read) in [
            ("2026-11-21T08:00:00Z", "2026-11-21T08:00:00.000Z"),
            ("2026-11-21t08:00:00.5z", "2026-11-21T08:00:00.500Z"),
            ("2026-11-21 08:00:00-00:00", "2026-11-21T08:00:00.000Z"),
            ("2026-11-21T08:00:00.1234567891+05:30", "2026-11-21T02:30:00.123Z"),
            ("2026-11-21T08:00:00-23:59", "2026-11-22T07:59:00.000Z"),
            ("2024-02-29T23:59:59.999Z", "2024-02-29T23:59:59.999Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
            ("0000-12-31T23:30:00-01:00", "0001-01-01T00:30:00.000Z"),
            ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(parse(given).map(text).as_deref(), Ok(read), "{given}");
        }
    }

    #[test]
    fn second_60_is_only_where_a_leap_second_can_be() {
        for given in [
            "2016-12-31T23:59:60Z",
            "2016-12-31T23:59:60.999Z",
            "2015-06-30T23:59:60.123456Z",
            "2017-01-01T00:59:60+01:00",
            "2017-01-01T23:58:60+23:59",
            "2015-06-30T16:29:60.5-07:30",
        ] {
            let time = parse(given).unwrap();
            assert_eq!(text(time).split_once('T').unwrap().1, "23:59:59.999Z", "{given}");
            assert_eq!((to_millis(time), parse(&text(time))), (time, Ok(time)), "every store keeps it");
        }
        for given in [
            "2026-11-28T14:53:60Z",
            "2026-11-28T23:59:60Z",
            "2026-12-31T14:59:60Z",
            "2026-12-31T23:58:60.000Z",
            "2026-12-31T23:59:60+01:00",
            "2026-07-01T00:59:60Z",
            "2026-03-31T23:59:60Z",
            "2026-12-31T23:59:61Z",
        ] {
            assert_eq!(parse(given), Err(InvalidTime::TimeOfDay), "{given}");
        }
    }

    #[test]
    fn a_leap_second_changes_no_order() {
        let times = ["23:59:59.998", "23:59:59.999", "23:59:60", "23:59:60.9"];
        let mut times: Vec<_> = times.map(|time| parse(&format!("2016-12-31T{time}Z")).unwrap()).into();
        times.push(parse("2017-01-01T00:00:00Z").unwrap());
        assert!(times.is_sorted(), "{times:?}");
        assert!(times.iter().map(DateTime::timestamp_millis).is_sorted());
        assert!(times.iter().map(|time| text(*time)).is_sorted());
        assert_eq!(times[3].date_naive(), times[0].date_naive(), "it stays on its day");
    }

    #[test]
    fn the_error_has_the_reason() {
        for (given, reason) in [
            ("", InvalidTime::Format),
            ("yesterday", InvalidTime::Format),
            ("1795000000", InvalidTime::Format),
            ("2026-11-21", InvalidTime::Format),
            ("2026-11-21T08:00:00", InvalidTime::Format),
            ("2026-11-21T08:00Z", InvalidTime::Format),
            ("2026-11-21T08:00:00.Z", InvalidTime::Format),
            ("2026-11-21T08:00:00+01", InvalidTime::Format),
            ("2026-11-21T08:00:00Z ", InvalidTime::Format),
            ("2026-1-1T08:00:00Z", InvalidTime::Format),
            ("２０２６-11-21T08:00:00Z", InvalidTime::Format),
            ("12345-yesterday", InvalidTime::Format),
            ("2026-02-30T08:00:00Z", InvalidTime::Day),
            ("2025-02-29T08:00:00.123Z", InvalidTime::Day),
            ("2026-13-01T08:00:00+01:00", InvalidTime::Day),
            ("2026-00-10T24:00:00Z", InvalidTime::Day),
            ("2026-11-21T24:00:00Z", InvalidTime::TimeOfDay),
            ("2026-11-21T08:60:00.5Z", InvalidTime::TimeOfDay),
            ("2026-11-21T08:00:61Z", InvalidTime::TimeOfDay),
            ("2026-11-21T08:00:00+24:00", InvalidTime::Offset),
            ("2026-11-21T08:00:00-01:60", InvalidTime::Offset),
            ("10000-01-01T00:00:00Z", InvalidTime::Year),
            ("+10000-01-01T00:00:00Z", InvalidTime::Year),
            ("-0001-01-01T00:00:00Z", InvalidTime::Year),
            ("0000-01-01T00:00:00Z", InvalidTime::Year),
            ("9999-12-31T23:59:59-01:00", InvalidTime::Year),
            ("0001-01-01T00:00:00+01:00", InvalidTime::Year),
        ] {
            assert_eq!(parse(given), Err(reason), "{given}");
        }
    }

    #[test]
    fn only_the_canonical_format_takes_the_fast_path() {
        for millis in [0, 1, 951_782_399_999, 1_795_000_000_123, 4_107_542_399_000, -1, -62_135_596_800_000] {
            let time = DateTime::from_timestamp_millis(millis).unwrap();
            assert_eq!(parse_canonical(text(time).as_bytes()), Some(time), "{time}");
        }
        for other in [
            "2026-11-21T08:00:00Z",
            "2026-11-21T08:00:00.123+01:00",
            "2026-11-21t08:00:00.123z",
            "2026-13-21T08:00:00.123Z",
            "2026-02-29T08:00:00.123Z",
            "2026-11-21T24:00:00.123Z",
            "2026-11-21T23:59:60.123Z",
            "2026-11-21T08:00:0a.123Z",
            "-026-11-21T08:00:00.123Z",
            "",
        ] {
            assert_eq!(parse_canonical(other.as_bytes()), None, "{other}");
        }
    }
}
