//! A producer whose records and input offsets become visible together, or not at all.
//!
//! Each process has its own `transactional.id`, so two dispatchers never fence each other by name. What keeps a
//! former owner of a partition out is the group: the offsets are sent with the membership under which the
//! messages were polled, and the coordinator refuses those of any other generation (KIP-447). The next owner
//! reads the committed offsets only when no open transaction can change them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::{
    TopicPartitionList,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use service::kafka::{Context, KafkaConfig};
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};
use uuid::Uuid;

use crate::{consumer::Membership, dead_letter};

/// How long the broker keeps a dead process's transaction open, and with it whoever reads behind it.
const TRANSACTION_TIMEOUT_MS: &str = "10000";

/// How long librdkafka may take to begin, to commit or to abort. A transaction that takes longer is aborted anyway.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for an answer of librdkafka.
///
/// It is told of [`TIMEOUT`], and yet can wait for minutes when Kafka went away at the wrong moment: after an outage of
/// five seconds `send_offsets_to_transaction` had not returned three minutes later.
const GIVE_UP: Duration = Duration::from_secs(12);

/// What may wait in memory to be sent.
const BUFFER_KIB: &str = "16384";

/// How often to look whether the records are written.
const WRITTEN_POLL: Duration = Duration::from_millis(1);

/// How long to wait for room in the buffer.
const BUFFER_FULL_PAUSE: Duration = Duration::from_millis(2);

/// A producer that is ready to begin transactions.
pub(crate) struct Transactions {
    producer: Arc<BaseProducer<Context>>,
}

impl Transactions {
    /// Connects, and ends a transaction that this process may have left open.
    ///
    /// # Errors
    /// When Kafka does not answer or librdkafka refuses the settings.
    pub(crate) async fn start(kafka: &KafkaConfig, id: Uuid) -> KafkaResult<Self> {
        let producer: BaseProducer<Context> = kafka
            .client_config("dispatcher-fan-out")
            .set("transactional.id", kafka.topic(&format!("hopline-fan-out-{id}")))
            .set("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
            .set("compression.type", "zstd")
            .set("linger.ms", "1")
            .set("message.max.bytes", dead_letter::MAX_BYTES)
            .set("queue.buffering.max.kbytes", BUFFER_KIB)
            .create_with_context(Context::default())?;
        let transactions = Self { producer: Arc::new(producer) };
        transactions.blocking(|producer| producer.init_transactions(TIMEOUT)).await?;
        Ok(transactions)
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self) -> KafkaResult<()> {
        // Serves errors and logs of the time since the last one.
        self.producer.poll(Duration::ZERO);
        self.producer.begin_transaction()
    }

    /// Adds a record; waits while the buffer is full.
    ///
    /// That the record cannot be written shows when the transaction is committed.
    pub(crate) async fn send(&self, mut record: BaseRecord<'_, str, [u8]>) -> KafkaResult<()> {
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), refused)) => {
                    record = refused;
                }
                Err((error, _)) => return Err(error),
            }
            // Makes room by taking in what was written.
            self.producer.poll(Duration::ZERO);
            sleep(BUFFER_FULL_PAUSE).await;
        }
    }

    /// Commits the records and the offsets to read next.
    pub(crate) async fn commit(
        &self,
        offsets: TopicPartitionList,
        membership: Membership,
    ) -> KafkaResult<()> {
        self.blocking(move |producer| {
            let end = Instant::now() + TIMEOUT;
            written(producer, end);
            let left = || end.saturating_duration_since(Instant::now());
            producer.send_offsets_to_transaction(&offsets, &membership, left())?;
            producer.commit_transaction(left())
        })
        .await
    }

    /// Takes everything back.
    ///
    /// # Errors
    /// When the producer is of no further use: whether the transaction was committed is then settled by the next
    /// one that starts, or by the broker's timeout.
    pub(crate) async fn abort(&self) -> KafkaResult<()> {
        self.blocking(|producer| producer.abort_transaction(TIMEOUT)).await
    }

    /// Leaves the producer to a thread of its own: its end waits for what it still has.
    pub(crate) fn drop_later(self) {
        spawn_blocking(move || drop(self));
    }

    async fn blocking(
        &self,
        step: impl FnOnce(&BaseProducer<Context>) -> KafkaResult<()> + Send + 'static,
    ) -> KafkaResult<()> {
        let producer = Arc::clone(&self.producer);
        answer(move || step(&producer), GIVE_UP).await
    }
}

/// Makes a step on a thread of its own and waits for its end, but no longer than `limit`.
///
/// A thread that is still at it then is left to itself, with its producer: no call would end it.
async fn answer(step: impl FnOnce() -> KafkaResult<()> + Send + 'static, limit: Duration) -> KafkaResult<()> {
    // A thread that has panicked is as good as no answer.
    match timeout(limit, spawn_blocking(step)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => Err(KafkaError::Canceled),
    }
}

/// Waits until the records are written. The commit would wait too, but only looks every 100 ms.
fn written(producer: &BaseProducer<Context>, end: Instant) {
    while producer.in_flight_count() > 0 && Instant::now() < end {
        producer.poll(WRITTEN_POLL);
    }
}

/// Tells whether an error leaves the producer usable once its transaction is aborted.
///
/// Without an answer it does not: whatever is asked next would wait behind what never ended.
pub(crate) fn is_abortable(error: &KafkaError) -> bool {
    match error {
        KafkaError::Transaction(error) => !error.is_fatal(),
        KafkaError::Canceled => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_step_that_never_ends_is_given_up_and_its_producer_with_it() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let step = move || {
            // Ends when the test does.
            let _ = held.recv();
            Ok(())
        };
        let error = answer(step, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(error, KafkaError::Canceled);
        assert!(!is_abortable(&error), "a new producer is needed");
        drop(release);
        assert_eq!(answer(|| Ok(()), GIVE_UP).await, Ok(()));
    }
}
