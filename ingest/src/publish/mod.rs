//! From the spool to topic `clicks`.
//!
//! One thread reads the segments in order, hands their records to an idempotent producer, notes which of them Kafka
//! has confirmed, and deletes a segment when that is all of it. Nothing else ends a click's stay in the spool: a
//! record that Kafka refused or whose fate is unknown is sent again, marked as a possible repeat.

mod measures;
mod partitions;
mod producer;
mod progress;
mod reports;
mod shipper;

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use anyhow::Context as _;
pub use partitions::Partitions;
use service::Check;
use service::kafka::KafkaConfig;
use shipper::Shipper;

use crate::spool::Spool;

/// The running publisher.
#[derive(Debug)]
pub struct Publisher {
    thread: thread::JoinHandle<()>,
    stop: Arc<OnceLock<Instant>>,
}

impl Publisher {
    /// Starts to publish what is in the spool; `kafka` says whether Kafka answers.
    ///
    /// # Errors
    /// When the producer's settings are refused, or no thread can be started.
    pub fn start(
        config: &KafkaConfig,
        spool: Arc<Spool>,
        partitions: Arc<Partitions>,
        kafka: Check,
    ) -> anyhow::Result<Self> {
        let client = producer::settings(config);
        // Wrong settings end the start here and not a thread later.
        client.create_native_config().context("cannot use the Kafka settings for publishing clicks")?;
        let stop = Arc::new(OnceLock::new());
        let topic = config.topic(schemas::topic::CLICKS.name);
        let shipper = Shipper::new(client, topic, spool, partitions, kafka, Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("publish".to_owned())
            .spawn(move || shipper.run())
            .context("cannot start the thread that publishes clicks")?;
        Ok(Self { thread, stop })
    }

    /// Publishes what is left until `deadline`, or until it is clear that Kafka is down, and ends.
    ///
    /// Blocks. What is not confirmed by then stays in the spool for the next start. Nothing may be appended to the
    /// spool any more, and its last segment must be sealed.
    pub fn finish(self, deadline: Instant) {
        self.stop.get_or_init(|| deadline);
        self.thread.thread().unpark();
        if self.thread.join().is_err() {
            tracing::error!("the thread that publishes clicks panicked; what it left is in the spool");
        }
    }
}
