//! Throttled logging of librdkafka's messages.

use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::{ClientContext, Statistics};

use crate::KeyedLogLimit;

/// How long the reasons of a failure may take.
const REASONS: Duration = Duration::from_millis(100);

/// A client context with throttled logs: while a broker is down, librdkafka writes 20 lines a second.
///
/// Other contexts contain one and forward `log` and `error` to it.
#[derive(Debug, Default)]
pub struct Context {
    /// By kind of message.
    log_limit: KeyedLogLimit<String>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // Facilities, such as FAIL or FETCH, are a short fixed list, so they serve as kinds.
        if matches!(level, RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug) {
            tracing::debug!(target: "librdkafka", facility, "{message}");
        } else if self.log_limit.is_due(&facility.to_owned()) {
            tracing::warn!(target: "librdkafka", facility, "{message}");
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // Not an error: consumers request it with enable.partition.eof.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        let kind = error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| format!("{code:?}"));
        if self.log_limit.is_due(&kind) {
            tracing::warn!(target: "librdkafka", "{error}: {reason}");
        }
    }

    fn stats(&self, _: Statistics) {
        // Ignored: a client that sets statistics.interval.ms has a different context.
    }
}

/// Fetches the metadata of every topic. When that fails, librdkafka's reasons are logged, such as a certificate that is
/// not trusted; an `AdminClient` would keep them to itself. Blocks.
pub(super) fn metadata(client: &BaseProducer<Context>, timeout: Duration) -> KafkaResult<Metadata> {
    let metadata = client.client().fetch_metadata(None, timeout);
    if metadata.is_err() {
        client.poll(REASONS);
    }
    metadata
}

impl ConsumerContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): Self::DeliveryOpaque) {}
}
