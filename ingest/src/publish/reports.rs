//! The delivery reports of the records that were passed to the producer.

use parking_lot::Mutex;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::{ClientContext, Message};
use schemas::message::Click;
use service::traces::{Kind, Tracer};

/// A segment and a record in it, in the size of a pointer, which saves an allocation per record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordId(usize);

// An id has 64 bits.
const _: () = assert!(usize::BITS >= 64);

impl RecordId {
    /// Creates an id. `segment` is the ordinal of a `Progress`.
    pub(super) fn new(segment: u32, index: u32) -> Self {
        Self((segment as usize) << 32 | index as usize)
    }

    pub(super) fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn into_opaque(self) -> usize {
        self.0
    }
}

/// A producer's context, which collects delivery reports.
pub(super) struct Reports {
    log: service::kafka::Context,
    tracer: Tracer,
    collected: Mutex<Outcomes>,
}

/// The outcomes of records, from their delivery reports.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    /// Records that Kafka has confirmed.
    pub(super) delivered: Vec<RecordId>,
    /// Records that Kafka has rejected, or whose outcome is unknown.
    pub(super) failed: Vec<FailedRecord>,
}

/// A record that has to be sent again.
#[derive(Debug)]
pub(super) struct FailedRecord {
    pub(super) id: RecordId,
    pub(super) partition: i32,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) code: Option<RDKafkaErrorCode>,
}

impl Reports {
    pub(super) fn new(tracer: Tracer) -> Self {
        Self { log: service::kafka::Context::default(), tracer, collected: Mutex::default() }
    }

    /// Returns the outcomes since the last call. Reuses the memory of `buffer` for the next ones.
    pub(super) fn take(&self, mut buffer: Outcomes) -> Outcomes {
        buffer.delivered.clear();
        buffer.failed.clear();
        std::mem::replace(&mut *self.collected.lock(), buffer)
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.log.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let id = RecordId(opaque);
        if let Ok(message) = result
            && self.tracer.is_on()
        {
            trace(&self.tracer, message);
        }
        let mut collected = self.collected.lock();
        match result {
            Ok(_) => collected.delivered.push(id),
            Err((error, message)) => {
                collected.failed.push(FailedRecord {
                    id,
                    partition: message.partition(),
                    key: message.key().unwrap_or_default().to_vec(),
                    value: message.payload().unwrap_or_default().to_vec(),
                    code: error.rdkafka_error_code(),
                });
                self.log.error(error.clone(), "a click was not delivered and will be sent again");
            }
        }
    }
}

/// Traces a confirmed click, from its answer on.
fn trace(tracer: &Tracer, message: &impl Message) {
    let id = message.key().and_then(|key| str::from_utf8(key).ok());
    let Some(trace) = id.and_then(|id| tracer.trace(id)) else { return };
    let Ok(click) = Click::borrow(message.payload().unwrap_or_default()) else { return };
    trace
        .child("publish", Kind::Producer, click.occurred_at.into())
        .number("messaging.kafka.offset", message.offset())
        .number("messaging.destination.partition.id", message.partition())
        .end();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_id_contains_segment_and_index() {
        for (segment, index) in [(0, 0), (1, u32::MAX), (u32::MAX, 7)] {
            let id = RecordId(RecordId::new(segment, index).into_opaque());
            assert_eq!((id.segment(), id.index()), (segment, index));
        }
    }
}
