//! Time as messages carry it: RFC 3339, UTC, milliseconds.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Writes a time the way every message and answer does: `2026-11-21T08:00:00.123Z`.
pub fn text(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Drops what is finer than a millisecond, so that a time survives every store unchanged.
pub fn to_millis(time: DateTime<Utc>) -> DateTime<Utc> {
    // Cutting a representable time to its millisecond gives a representable time.
    DateTime::from_timestamp_millis(time.timestamp_millis()).unwrap_or(time)
}

/// `#[serde(with = "schemas::time::millis")]`
pub mod millis {
    use super::{DateTime, Deserialize, Deserializer, Error as _, Serializer, Utc, text};

    /// Serializes as RFC 3339 with milliseconds.
    pub fn serialize<S: Serializer>(time: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text(*time))
    }

    /// Deserializes RFC 3339 with any offset and precision.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DateTime<Utc>, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        DateTime::parse_from_rfc3339(&text).map(|time| time.to_utc()).map_err(D::Error::custom)
    }
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

    /// Deserializes RFC 3339 with any offset and precision, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<DateTime<Utc>>, D::Error> {
        #[derive(Deserialize)]
        struct Wrapped(#[serde(with = "super::millis")] DateTime<Utc>);
        Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|Wrapped(time)| time))
    }
}
