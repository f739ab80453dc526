//! What became of the records that were handed to the producer.

use std::sync::{Mutex, PoisonError};

use rdkafka::{
    ClientContext, Message as _,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
    producer::{DeliveryResult, ProducerContext},
};

/// Collects delivery reports. Its records carry the number of their segment.
#[derive(Default)]
pub(super) struct Reports {
    log: service::kafka::Context,
    settled: Mutex<Settled>,
}

/// The reports since the last look.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Segments, and how many of their records Kafka has confirmed.
    pub(super) delivered: Vec<(u64, u64)>,
    /// Records that Kafka has not taken, as far as is known.
    pub(super) failed: Vec<Failed>,
}

/// A record that has to be sent again.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) segment: u64,
    pub(super) partition: i32,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) code: Option<RDKafkaErrorCode>,
}

impl Reports {
    pub(super) fn take(&self) -> Settled {
        std::mem::take(&mut *self.settled.lock().unwrap_or_else(PoisonError::into_inner))
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
    /// A segment's number; a pointer's size, so that no record needs an allocation of its own.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, segment: usize) {
        let segment = segment as u64;
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(_) => match settled.delivered.last_mut() {
                Some((last, count)) if *last == segment => *count += 1,
                _ => settled.delivered.push((segment, 1)),
            },
            Err((error, message)) => {
                settled.failed.push(Failed {
                    segment,
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
