//! Records that are not what their topic holds, on their way to the topic of dead letters.

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use metrics::counter;
use rdkafka::Message as _;
use rdkafka::message::{BorrowedMessage, Headers as _};
use schemas::message::DeadLetter;
use service::kafka::DeadLetters;
use tokio_util::sync::CancellationToken;

use crate::pipeline::decode::{Poison, Record};
use crate::pipeline::retry::{Stopped, until_done};

/// A record that could not be read, with its original bytes.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// What is said of it.
    pub letter: DeadLetter,
    /// Its offset.
    pub offset: u64,
    /// The broker's clock, if it gave a time.
    pub broker_ts: Option<DateTime<Utc>>,
    /// The original value.
    pub payload: Vec<u8>,
}

impl Unreadable {
    /// Wraps a record of a topic, by its full name, and the reason why it is not of a schema.
    pub fn new(topic: &str, schema: &str, partition: i32, record: &Record<'_>, poison: &Poison) -> Self {
        let Record { offset, broker_ts, key, payload } = *record;
        let letter = DeadLetter {
            topic: topic.to_owned(),
            position: Some((partition, offset)),
            log: None,
            reason: poison.to_string(),
            schema: schema.to_owned(),
            key: key.map(<[u8]>::to_vec),
        };
        Self { letter, offset, broker_ts, payload: payload.unwrap_or_default().to_vec() }
    }

    /// Says which log of its partition it is of.
    #[must_use]
    pub fn of_log(mut self, log: u16) -> Self {
        self.letter.log = Some(log);
        self
    }
}

/// Reads what a record of topic `dead-letters` says.
pub(crate) fn read(record: &BorrowedMessage<'_>) -> DeadLetter {
    DeadLetter::read(|name| record.headers()?.iter().find(|header| header.key == name)?.value)
}

/// Writes dead letters, all at once, each until Kafka has it.
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
