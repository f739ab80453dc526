//! What became of the records that were handed to the producer.

use std::sync::{Mutex, PoisonError};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::{ClientContext, Message as _};

/// Which record of which segment, in the size of a pointer, so that no record needs an allocation of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(usize);

/// Both halves of a ticket are needed.
const _: () = assert!(usize::BITS >= 64);

impl Ticket {
    /// `segment` is the ordinal of a [`Progress`](super::progress::Progress).
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

/// Collects delivery reports. Its records carry their tickets.
#[derive(Default)]
pub(super) struct Reports {
    log: service::kafka::Context,
    settled: Mutex<Settled>,
}

/// The reports since the last look.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Records that Kafka has confirmed.
    pub(super) delivered: Vec<Ticket>,
    /// Records that Kafka has not taken, as far as is known.
    pub(super) failed: Vec<Failed>,
}

/// A record that has to be sent again.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) ticket: Ticket,
    pub(super) partition: i32,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) code: Option<RDKafkaErrorCode>,
}

impl Reports {
    /// Returns what is new, in place of what the caller has settled.
    pub(super) fn take(&self, mut emptied: Settled) -> Settled {
        emptied.delivered.clear();
        emptied.failed.clear();
        std::mem::replace(&mut *self.settled.lock().unwrap_or_else(PoisonError::into_inner), emptied)
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
        let ticket = Ticket(opaque);
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(_) => settled.delivered.push(ticket),
            Err((error, message)) => {
                settled.failed.push(Failed {
                    ticket,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_names_its_segment_and_its_record() {
        for (segment, index) in [(0, 0), (1, u32::MAX), (u32::MAX, 7)] {
            let ticket = Ticket(Ticket::new(segment, index).into_opaque());
            assert_eq!((ticket.segment(), ticket.index()), (segment, index));
        }
    }
}
