//! Publishes the clicks in the spool to topic `clicks`.
//!
//! One thread reads the segments in order, passes their records to an idempotent producer, records which of them Kafka
//! has confirmed, and deletes a segment once all its records are confirmed. A record that Kafka rejected or whose
//! outcome is unknown is sent again, marked as a possible repeat.

mod metrics;
mod partitions;
mod producer;
mod progress;
mod reports;
mod shipper;

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use anyhow::Context as _;
use service::Check;
use service::kafka::KafkaConfig;
use service::traces::Tracer;

pub use self::partitions::Partitions;
use crate::publish::shipper::Shipper;
use crate::spool::Spool;

/// The running publisher.
#[derive(Debug)]
pub struct Publisher {
    thread: thread::JoinHandle<()>,
    stop: Arc<OnceLock<Instant>>,
}

impl Publisher {
    /// Starts to publish the clicks in the spool. `kafka` is ready while Kafka answers; `tracer` gets the confirmed
    /// ones.
    ///
    /// # Errors
    /// When the producer's settings are invalid, or the thread cannot be started.
    pub fn start(
        config: &KafkaConfig,
        spool: Arc<Spool>,
        partitions: Arc<Partitions>,
        kafka: Check,
        tracer: Tracer,
    ) -> anyhow::Result<Self> {
        let client = producer::settings(config);
        // Invalid settings are reported here and not in the thread.
        client.create_native_config().context("cannot use the Kafka settings for publishing clicks")?;
        let stop = Arc::new(OnceLock::new());
        let topic = config.topic(schemas::topic::CLICKS.name);
        let shipper = Shipper::new(client, topic, spool, partitions, kafka, Arc::clone(&stop), tracer);
        let thread = thread::Builder::new()
            .name("publish".to_owned())
            .spawn(move || shipper.run())
            .context("cannot start the thread that publishes clicks")?;
        Ok(Self { thread, stop })
    }

    /// Publishes the remaining clicks, at most until `deadline` or while Kafka answers, and ends the thread. Blocks.
    ///
    /// Unconfirmed clicks stay in the spool for the next start. The caller must have sealed the spool's last segment
    /// and must not append any more.
    pub fn finish(self, deadline: Instant) {
        self.stop.get_or_init(|| deadline);
        self.thread.thread().unpark();
        if self.thread.join().is_err() {
            tracing::error!(
                "the thread that publishes clicks panicked; unconfirmed clicks stay in the spool"
            );
        }
    }
}
