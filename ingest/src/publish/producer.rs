//! The Kafka producer of clicks.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use service::kafka::KafkaConfig;

use crate::publish::reports::{RecordId, Reports};

/// How long the producer collects clicks for a batch, in milliseconds. With 5, and a partition chosen for each click,
/// the same clicks need at least four times as many requests.
const LINGER_MS: &str = "20";

/// The level of zstd. The default, 3, takes more time and does not make batches of clicks smaller.
const COMPRESSION_LEVEL: &str = "1";

/// The maximum number of clicks in the producer. Further ones wait in the spool.
const MAX_IN_FLIGHT: &str = "50000";

/// A producer that collects delivery reports.
pub(super) type Producer = BaseProducer<Reports>;

/// Returns the producer's settings. The client itself must neither lose nor duplicate a click.
pub(super) fn settings(config: &KafkaConfig) -> ClientConfig {
    let mut client = config.client_config("ingest");
    client
        .set("linger.ms", LINGER_MS)
        .set("compression.codec", "zstd")
        .set("compression.level", COMPRESSION_LEVEL)
        .set("queue.buffering.max.messages", MAX_IN_FLIGHT)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        // No timeout, because only a confirmation removes a click from the spool.
        .set("message.timeout.ms", "0");
    client
}

/// Adds a record to the producer's queue.
pub(super) fn enqueue(
    producer: &Producer,
    topic: &str,
    id: RecordId,
    partition: i32,
    key: &[u8],
    value: &[u8],
) -> Result<(), RDKafkaErrorCode> {
    let message =
        BaseRecord::with_opaque_to(topic, id.into_opaque()).partition(partition).key(key).payload(value);
    producer.send(message).map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail))
}

/// Collects all available delivery reports without waiting for more.
///
/// A poll that waits is busy for the last millisecond of its timeout, and one that does not wait collects a single
/// batch of reports.
pub(super) fn collect_reports(producer: &Producer) {
    loop {
        let in_flight = producer.in_flight_count();
        producer.poll(Duration::ZERO);
        if producer.in_flight_count() == in_flight {
            return;
        }
    }
}
