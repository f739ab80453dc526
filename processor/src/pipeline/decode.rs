//! Decodes a record of the topic into a row, or into the reason why it is invalid.

use chrono::{DateTime, Utc};
use rdkafka::Message as _;
use rdkafka::message::BorrowedMessage;
use schemas::message::{Click, DecodeError, Text};
use schemas::row::ClickRow;

/// A record as Kafka returned it, without its partition, with borrowed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The offset within the partition.
    pub offset: u64,
    /// The broker's time; `None` when the record has none.
    pub broker_ts: Option<DateTime<Utc>>,
    /// The record's key.
    pub key: Option<&'a [u8]>,
    /// The record's value; `None` for a tombstone.
    pub payload: Option<&'a [u8]>,
}

impl<'a> Record<'a> {
    /// Borrows the parts of a message.
    pub fn of(message: &'a BorrowedMessage<'_>) -> Self {
        Self {
            // Kafka's offsets are never negative.
            offset: u64::try_from(message.offset()).unwrap_or(0),
            broker_ts: message.timestamp().to_millis().and_then(DateTime::from_timestamp_millis),
            key: message.key(),
            payload: message.payload(),
        }
    }
}

/// Why a record is invalid. Decoding it again with the same build fails again.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The value is not a message that this build can decode.
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
    /// The record has no value.
    #[error("a record without a value")]
    NoValue,
    /// The record has no broker time, by which the table is partitioned.
    #[error("a record without the broker's time")]
    NoBrokerTime,
    /// The time does not fit into its column.
    #[error("occurred_at {0} is before 1970")]
    BeforeEpoch(DateTime<Utc>),
}

/// Decodes a record of the source `src` into a row that borrows its texts from the record.
///
/// # Errors
/// [`RecordError`] with what is wrong with the record.
pub fn borrow<'a>(src: u32, record: &Record<'a>) -> Result<ClickRow<Text<'a>>, RecordError> {
    let click = Click::borrow(record.payload.ok_or(RecordError::NoValue)?)?;
    let broker_ts = record.broker_ts.ok_or(RecordError::NoBrokerTime)?;
    if click.occurred_at < DateTime::UNIX_EPOCH {
        return Err(RecordError::BeforeEpoch(click.occurred_at));
    }
    Ok(ClickRow { click, src, koff: record.offset, broker_ts })
}

/// Decodes a record of the source `src` into a row that owns its texts.
///
/// # Errors
/// As [`borrow`].
pub fn decode(src: u32, record: &Record<'_>) -> Result<ClickRow, RecordError> {
    let ClickRow { click, src, koff, broker_ts } = borrow(src, record)?;
    Ok(ClickRow { click: click.to_owned(), src, koff, broker_ts })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLICK: &str = include_str!("../../../schemas/fixtures/click.v1.json");

    fn record(payload: &str) -> Record<'_> {
        let broker_ts = Some("2026-11-21T12:00:00Z".parse().unwrap());
        Record { offset: 42, broker_ts, key: None, payload: Some(payload.as_bytes()) }
    }

    #[test]
    fn a_click_becomes_a_row_with_its_position() {
        let row = decode(65_539, &record(CLICK)).unwrap();
        assert_eq!((row.src, row.koff), (65_539, 42));
        assert_eq!(row.click.slug, "spring");
    }

    #[test]
    fn an_invalid_record_has_a_reason() {
        let later = CLICK.replacen("\"v\":1", "\"v\":9", 1);
        let ancient = CLICK.replacen("2026-09-21", "1850-09-21", 1);
        let reason = |payload: &str| decode(1, &record(payload)).unwrap_err().to_string();
        assert_eq!(reason(&later), "unknown message version 9");
        assert!(reason("{").starts_with("malformed message"), "{}", reason("{"));
        assert!(reason(&ancient).contains("before 1970"), "{}", reason(&ancient));
        let tombstone = Record { payload: None, ..record("") };
        assert!(matches!(decode(1, &tombstone), Err(RecordError::NoValue)));
        let timeless = Record { broker_ts: None, ..record(CLICK) };
        assert!(matches!(decode(1, &timeless), Err(RecordError::NoBrokerTime)));
    }
}
