//! The producer, and how it is used.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use service::kafka::KafkaConfig;

use super::reports::{Reports, Ticket};

/// How long the producer collects clicks for one batch, in milliseconds. With 5, and a partition for each click of
/// its own, the same clicks cost at least four times as many requests.
const LINGER_MS: &str = "20";

/// Level of zstd. The default, 3, takes more time and makes batches of clicks no smaller.
const COMPRESSION_LEVEL: &str = "1";

/// How many clicks the producer holds; further ones wait in the spool.
const IN_FLIGHT: &str = "50000";

/// A producer that tells what became of each record.
pub(super) type Producer = BaseProducer<Reports>;

/// Returns the producer's settings: no click may be lost or doubled by the client itself.
pub(super) fn settings(config: &KafkaConfig) -> ClientConfig {
    let mut client = config.client_config("ingest");
    client
        .set("linger.ms", LINGER_MS)
        .set("compression.codec", "zstd")
        .set("compression.level", COMPRESSION_LEVEL)
        .set("queue.buffering.max.messages", IN_FLIGHT)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        // A record has all the time in the world: the spool is deleted by confirmations, not by giving up.
        .set("message.timeout.ms", "0");
    client
}

/// Puts a record into the producer's queue.
pub(super) fn hand_over(
    producer: &Producer,
    topic: &str,
    ticket: Ticket,
    partition: i32,
    key: &[u8],
    value: &[u8],
) -> Result<(), RDKafkaErrorCode> {
    let message =
        BaseRecord::with_opaque_to(topic, ticket.into_opaque()).partition(partition).key(key).payload(value);
    producer.send(message).map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail))
}

/// Serves every delivery report that is there, without waiting for more: a poll that waits stays busy for the last
/// millisecond of its time, and one that does not wait serves a single batch of reports.
pub(super) fn serve_reports(producer: &Producer) {
    loop {
        let waiting = producer.in_flight_count();
        producer.poll(Duration::ZERO);
        if producer.in_flight_count() == waiting {
            return;
        }
    }
}
