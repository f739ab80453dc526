//! Throttled logging of librdkafka's messages.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::{ClientContext, Statistics};

/// Minimum time between two log lines of the same kind.
const INTERVAL: Duration = Duration::from_secs(30);

/// A client context with throttled logs: while a broker is down, librdkafka writes 20 lines a second.
///
/// Other contexts contain one and forward `log` and `error` to it.
#[derive(Debug, Default)]
pub struct Context {
    kinds: Mutex<HashMap<String, Kind>>,
}

#[derive(Debug)]
struct Kind {
    logged_at: Instant,
    suppressed: u64,
}

impl Context {
    /// Returns whether to log a line of this kind now: `Some` with the number of lines suppressed since the last one.
    fn due(&self, kind: &str, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock();
        let Some(known) = kinds.get_mut(kind) else {
            kinds.insert(kind.to_owned(), Kind { logged_at: now, suppressed: 0 });
            return Some(0);
        };
        if now.duration_since(known.logged_at) < INTERVAL {
            known.suppressed += 1;
            return None;
        }
        known.logged_at = now;
        Some(std::mem::take(&mut known.suppressed))
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // Facilities, such as FAIL or FETCH, are a short fixed list, so they serve as kinds.
        if matches!(level, RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug) {
            tracing::debug!(target: "librdkafka", facility, "{message}");
        } else if let Some(suppressed) = self.due(facility, Instant::now()) {
            tracing::warn!(target: "librdkafka", facility, suppressed, "{message}");
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // Not an error: consumers request it with enable.partition.eof.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        let kind = error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| format!("{code:?}"));
        if let Some(suppressed) = self.due(&kind, Instant::now()) {
            tracing::warn!(target: "librdkafka", suppressed, "{error}: {reason}");
        }
    }

    fn stats(&self, _: Statistics) {
        // Ignored: a client that sets statistics.interval.ms has a different context.
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
    fn lines_of_one_kind_are_throttled_and_counted() {
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
