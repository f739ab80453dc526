//! Deliveries from the topic into Postgres, where they wait for their turn.
//!
//! How far each partition is stored stands in Postgres, in the transaction that stores: that row, not Kafka's
//! committed offset, says where to go on, and it moves only from where this process knows it to be. So nothing is
//! stored twice or skipped, whoever is killed, and a process that lost a partition without knowing is kept out.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use rdkafka::{
    Message as _, TopicPartitionList,
    error::{KafkaError, KafkaResult},
    message::OwnedMessage,
    producer::{FutureProducer, FutureRecord},
    topic_partition_list::Offset,
    util::Timeout,
};
use schemas::id::EndpointId;
use schemas::message::{Delivery, Message as _};
use schemas::topic;
use service::{
    Shutdown,
    kafka::{Context, KafkaConfig},
};
use sqlx::PgPool;
use tokio::{sync::mpsc, task::spawn_blocking, time::sleep};

use crate::{
    consumer::{Consumer, PAUSE},
    dead_letter::{self, DeadLetter},
    store::{self, Move},
};

/// How long a delivery may wait for others to share its transaction.
const LINGER: Duration = Duration::from_millis(5);

/// Deliveries of one transaction.
const BATCH: usize = 1000;

/// How long to wait before looking again whether an operator has decided.
const OPERATORS_TURN: Duration = Duration::from_secs(10);

/// How long a dead letter may take.
const DEAD_LETTER_TIMEOUT: Timeout = Timeout::After(Duration::from_secs(10));

/// Stores deliveries until a stop is requested, and names their endpoints to `stored`.
///
/// # Errors
/// When librdkafka refuses the settings. Anything else is tried again.
pub(crate) async fn intake(
    kafka: KafkaConfig,
    pool: PgPool,
    stored: mpsc::Sender<HashSet<EndpointId>>,
    shutdown: Shutdown,
) -> KafkaResult<()> {
    let topic = kafka.topic(topic::DELIVERIES.name);
    let group = kafka.topic("hopline-dispatcher");
    let consumer = Consumer::join(&kafka, "dispatcher-deliver", &group, &[&topic])?;
    let dead_letters = kafka
        .client_config("dispatcher-dead-letters")
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("message.max.bytes", dead_letter::MAX_BYTES)
        .create_with_context(Context::default())?;
    let mut intake = Intake {
        dead_letters_topic: kafka.topic(topic::DEAD_LETTERS.name),
        topic,
        consumer,
        dead_letters,
        pool,
        stored,
        owned: None,
    };
    while !shutdown.requested() {
        let outcome = tokio::select! {
            outcome = intake.step() => outcome,
            // The step stops where it is; the row in Postgres knows how far it came.
            () = shutdown.wait() => break,
        };
        if let Err(error) = outcome {
            tracing::warn!("intake begins again at its stored offsets: {error}");
            intake.owned = None;
            let pause = if matches!(error, IntakeError::LogTooShort { .. }) { OPERATORS_TURN } else { PAUSE };
            tokio::select! {
                () = sleep(pause) => {}
                () = shutdown.wait() => break,
            }
        }
    }
    // Leaving the group waits for its coordinator.
    let _ = spawn_blocking(move || drop(intake)).await;
    Ok(())
}

/// Why a step has to be done again.
#[derive(Debug, thiserror::Error)]
enum IntakeError {
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
    #[error("Postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("another dispatcher has taken a partition over")]
    Fenced,
    #[error(
        "partition {partition} ends at {end}, before {next}, where this database goes on: is this another Kafka? \
         If its deliveries are to be sent, delete the partition's row in webhook_offsets"
    )]
    LogTooShort { partition: i32, end: i64, next: i64 },
}

struct Intake {
    topic: String,
    dead_letters_topic: String,
    consumer: Consumer,
    dead_letters: FutureProducer<Context>,
    pool: PgPool,
    stored: mpsc::Sender<HashSet<EndpointId>>,
    /// None when the partitions have to be taken over first.
    owned: Option<Owned>,
}

/// The partitions of this process, and where each goes on.
struct Owned {
    /// How often partitions had changed hands when these were taken over.
    changes: u64,
    next: HashMap<i32, i64>,
}

impl Intake {
    async fn step(&mut self) -> Result<(), IntakeError> {
        let changes = self.consumer.changes();
        if self.owned.as_ref().is_none_or(|owned| owned.changes != changes) {
            let next = self.take_over().await?;
            self.owned = Some(Owned { changes, next });
        }
        let polled = self.consumer.poll(BATCH, LINGER).await;
        // Messages from before a change of hands may be another's by now: they are read again from the stored offsets.
        if self.consumer.changes() == changes && !polled.messages.is_empty() {
            self.store(&polled.messages).await?;
        }
        Ok(())
    }

    /// Goes to the stored offsets of the partitions that are this process's now.
    async fn take_over(&self) -> Result<HashMap<i32, i64>, IntakeError> {
        let partitions: Vec<i32> =
            self.consumer.assigned()?.into_iter().map(|(_, partition)| partition).collect();
        let next = store::next_offsets(&self.pool, &partitions).await?;
        let mut positions = TopicPartitionList::new();
        for (&partition, &next) in &next {
            let end = self.consumer.end(self.topic.clone(), partition).await?;
            if end < next {
                return Err(IntakeError::LogTooShort { partition, end, next });
            }
            positions.add_partition_offset(&self.topic, partition, Offset::Offset(next))?;
        }
        self.consumer.seek(positions).await?;
        Ok(next)
    }

    async fn store(&mut self, messages: &[OwnedMessage]) -> Result<(), IntakeError> {
        let Some(owned) = &mut self.owned else { return Ok(()) };
        let mut deliveries = Vec::with_capacity(messages.len());
        let mut reached: BTreeMap<i32, i64> = BTreeMap::new();
        for message in messages {
            let (partition, offset) = (message.partition(), message.offset());
            // What was fetched before the seek is stored already.
            if owned.next.get(&partition).is_none_or(|next| offset < *next) {
                continue;
            }
            match Delivery::decode(message.payload().unwrap_or_default()) {
                Ok(delivery) => deliveries.push(delivery),
                Err(error) => {
                    let letter = DeadLetter::new(message, &error, "delivery.v1");
                    let record = FutureRecord::to(&self.dead_letters_topic)
                        .key(letter.key())
                        .payload(letter.payload())
                        .headers(letter.headers());
                    self.dead_letters.send(record, DEAD_LETTER_TIMEOUT).await.map_err(|(error, _)| error)?;
                }
            }
            reached.insert(partition, offset + 1);
        }
        if reached.is_empty() {
            return Ok(());
        }
        let moves: Vec<Move> = reached
            .iter()
            .map(|(&partition, &to)| Move { partition, from: owned.next[&partition], to })
            .collect();
        store::insert(&self.pool, &deliveries, &moves).await?.map_err(|store::Fenced| IntakeError::Fenced)?;
        let mut offsets = TopicPartitionList::with_capacity(moves.len());
        for Move { partition, to, .. } in moves {
            owned.next.insert(partition, to);
            offsets.add_partition_offset(&self.topic, partition, Offset::Offset(to))?;
        }
        self.consumer.report(&offsets);
        metrics::counter!("hopline_webhook_deliveries_stored_total").increment(deliveries.len() as u64);
        // Without a listener the process is stopping, and the deliveries wait in Postgres.
        let _ = self.stored.send(deliveries.iter().map(|delivery| delivery.endpoint_id).collect()).await;
        Ok(())
    }
}
