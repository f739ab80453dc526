//! What librdkafka says, at a bearable rate.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::{ClientContext, Statistics};

/// Least time between two lines of one kind.
const INTERVAL: Duration = Duration::from_secs(30);

/// A client context whose logs are limited: with a broker down, librdkafka itself writes 20 lines a second.
///
/// A context with duties of its own keeps one of these and passes `log` and `error` on to it.
#[derive(Debug, Default)]
pub struct Context {
    kinds: Mutex<HashMap<String, Kind>>,
}

#[derive(Debug)]
struct Kind {
    written: Instant,
    suppressed: u64,
}

impl Context {
    /// Returns how many lines of this kind were left out since the last one, if one is due.
    fn due(&self, kind: &str, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = kinds.get_mut(kind) else {
            let first = Kind { written: now, suppressed: 0 };
            kinds.insert(kind.to_owned(), first);
            return Some(0);
        };
        if now.duration_since(known.written) < INTERVAL {
            known.suppressed += 1;
            return None;
        }
        known.written = now;
        Some(std::mem::take(&mut known.suppressed))
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // The facilities, such as FAIL or FETCH, are librdkafka's own short and closed list of kinds.
        if matches!(level, RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug) {
            tracing::debug!(target: "librdkafka", facility, "{message}");
        } else if let Some(suppressed) = self.due(facility, Instant::now()) {
            tracing::warn!(target: "librdkafka", facility, suppressed, "{message}");
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // Asked for with enable.partition.eof, and news for the consumer, not a fault.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        let kind = error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| format!("{code:?}"));
        if let Some(suppressed) = self.due(&kind, Instant::now()) {
            tracing::warn!(target: "librdkafka", suppressed, "{error}: {reason}");
        }
    }

    fn stats(&self, _: Statistics) {
        // Only with statistics.interval.ms, whose reader has a context of its own.
    }
}

impl ConsumerContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): Self::DeliveryOpaque) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_kind_are_limited_and_the_rest_is_counted() {
        let context = Context::default();
        let start = Instant::now();
        assert_eq!(context.due("FAIL", start), Some(0));
        assert_eq!(context.due("ERROR", start), Some(0));
        for _ in 0..20 {
            assert_eq!(context.due("FAIL", start + Duration::from_secs(1)), None);
        }
        assert_eq!(context.due("FAIL", start + INTERVAL), Some(20));
        assert_eq!(context.due("FAIL", start + INTERVAL + Duration::from_secs(1)), None);
    }
}
