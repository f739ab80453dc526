//! Invalid records, which are written to topic `dead-letters`.

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use metrics::counter;
use rdkafka::Message as _;
use rdkafka::message::{BorrowedMessage, Headers as _};
use schemas::message::DeadLetter;
use service::kafka::DeadLetters;
use tokio_util::sync::CancellationToken;

use crate::pipeline::decode::{Record, RecordError};
use crate::pipeline::retry::{Stopped, until_done};

/// An invalid record, with its original bytes.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// The description for the dead letter.
    pub letter: DeadLetter,
    /// The record's offset.
    pub offset: u64,
    /// The broker's time, if the record has one.
    pub broker_ts: Option<DateTime<Utc>>,
    /// The original value.
    pub payload: Vec<u8>,
}

impl Unreadable {
    /// Describes a record that does not match a schema; `topic` is the full name.
    pub fn new(topic: &str, schema: &str, partition: i32, record: &Record<'_>, error: &RecordError) -> Self {
        let Record { offset, broker_ts, key, payload } = *record;
        let letter = DeadLetter {
            topic: topic.to_owned(),
            position: Some((partition, offset)),
            log: None,
            reason: error.to_string(),
            schema: schema.to_owned(),
            key: key.map(<[u8]>::to_vec),
        };
        Self { letter, offset, broker_ts, payload: payload.unwrap_or_default().to_vec() }
    }

    /// Sets the number of the log within its partition.
    #[must_use]
    pub fn of_log(mut self, log: u16) -> Self {
        self.letter.log = Some(log);
        self
    }
}

/// Reads the description from the headers of a record of topic `dead-letters`.
pub(crate) fn read(record: &BorrowedMessage<'_>) -> DeadLetter {
    DeadLetter::read(|name| record.headers()?.iter().find(|header| header.key == name)?.value)
}

/// Writes all dead letters concurrently, and retries each until Kafka confirms it.
///
/// # Errors
/// [`Stopped`] when `stop` is cancelled first.
pub(crate) async fn write(
    unreadable: &[Unreadable],
    dead_letters: &DeadLetters,
    stop: &CancellationToken,
) -> Result<(), Stopped> {
    let written = unreadable.iter().map(async |Unreadable { letter, offset, payload, .. }| {
        let partition = letter.position.map_or(0, |(partition, _)| partition);
        let key = letter.record_key();
        let write = || dead_letters.write(&key, letter.headers(), payload);
        until_done("write a dead letter", partition, stop, write).await?;
        counter!("hopline_processor_dead_letters_total").increment(1);
        tracing::warn!(partition, offset, reason = letter.reason, "wrote a dead letter: {}", letter.reason);
        Ok(())
    });
    join_all(written).await.into_iter().collect()
}
