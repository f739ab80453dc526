//! Deliveries from the topic into Postgres, where they wait for their turn.
//!
//! How far each partition is stored stands in Postgres, in the transaction that stores: that row, not Kafka's
//! committed offset, says where to go on, and it moves only from where this process knows it to be. So nothing is
//! stored twice or skipped, whoever is killed, and a process that lost a partition without knowing is kept out.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use bytes::Bytes;
use chrono::Utc;
use rdkafka::{
    Message as _, TopicPartitionList,
    error::{KafkaError, KafkaResult},
    message::OwnedMessage,
    producer::{FutureProducer, FutureRecord},
    topic_partition_list::Offset,
    util::Timeout,
};
use schemas::message::{Delivery, Message as _};
use schemas::topic;
use service::{
    Check, Shutdown,
    kafka::{Context, KafkaConfig},
};
use sqlx::PgPool;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use uuid::Uuid;

use crate::{
    attempt::Claimed,
    consumer::{Consumer, PAUSE},
    dead_letter::{self, DeadLetter},
    fan_out,
    handover::Handover,
    liveness::Liveness,
    store::{self, Incoming, Lease, Move},
};

/// How long a delivery may wait for others to share its transaction.
const LINGER: Duration = Duration::from_millis(5);

/// Deliveries of one transaction.
const BATCH: usize = 1000;

/// How long to wait before looking again whether an operator has decided.
const OPERATORS_TURN: Duration = Duration::from_secs(10);

/// How long a dead letter may take.
const DEAD_LETTER_TIMEOUT: Timeout = Timeout::After(Duration::from_secs(10));

/// Stores deliveries until a stop is requested, and hands them over to be sent.
///
/// # Errors
/// When librdkafka refuses the settings. Anything else is tried again.
pub(crate) async fn intake(
    kafka: KafkaConfig,
    pool: PgPool,
    handover: Handover,
    check: Check,
    shutdown: Shutdown,
) -> KafkaResult<()> {
    let topic = kafka.topic(topic::DELIVERIES.name);
    let mut liveness = Liveness::new(check);
    let dead_letters = kafka
        .client_config("dispatcher-dead-letters")
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("message.max.bytes", dead_letter::MAX_BYTES)
        .create_with_context(Context::default())?;
    let mut intake = Intake {
        dead_letters_topic: kafka.topic(topic::DEAD_LETTERS.name),
        consumer: consumer(&kafka, &topic)?,
        topic,
        dead_letters,
        pool,
        handover,
        owned: None,
    };
    while !shutdown.requested() {
        let outcome = tokio::select! {
            outcome = intake.step(&mut liveness) => outcome,
            // The step stops where it is; the row in Postgres knows how far it came.
            () = shutdown.wait() => break,
        };
        if let Err(error) = outcome {
            tracing::warn!("intake begins again at its stored offsets: {error}");
            intake.owned = None;
            if matches!(error, IntakeError::Kafka(_) | IntakeError::Outside) {
                // Clients that know nothing of what was: whatever Kafka's absence has done to the former one ends here.
                std::mem::replace(&mut intake.consumer, consumer(&kafka, &intake.topic)?).leave();
            }
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

fn consumer(kafka: &KafkaConfig, topic: &str) -> KafkaResult<Consumer> {
    Consumer::join(kafka, "dispatcher-deliver", &kafka.topic("hopline-dispatcher"), &[topic])
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
    #[error("the consumer has been outside of its group for too long")]
    Outside,
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
    handover: Handover,
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
    async fn step(&mut self, liveness: &mut Liveness) -> Result<(), IntakeError> {
        let changes = self.consumer.changes();
        if self.owned.as_ref().is_none_or(|owned| owned.changes != changes) {
            let next = liveness.during(self.take_over()).await?;
            self.owned = Some(Owned { changes, next });
        }
        let polled = liveness.poll(&self.consumer, BATCH, LINGER).await.ok_or(IntakeError::Outside)?;
        // Messages from before a change of hands may be another's by now: they are read again from the stored offsets.
        if self.consumer.changes() == changes && !polled.messages.is_empty() {
            liveness.during(self.store(&polled.messages)).await?;
            liveness.done();
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
        let (mut incoming, moves) = self.read(messages).await?;
        if moves.is_empty() {
            return Ok(());
        }
        let mut wanted = HashMap::new();
        for one in &incoming {
            *wanted.entry((one.delivery.endpoint_id, one.delivery.workspace_id)).or_insert(0) += 1;
        }
        let offer = self.handover.ask(wanted).await;
        let mut room: HashMap<_, usize> =
            offer.grants.iter().map(|grant| (grant.endpoint_id, grant.slots)).collect();
        for one in &mut incoming {
            if let Some(room @ 1..) = room.get_mut(&one.delivery.endpoint_id) {
                *room -= 1;
                one.is_leased = true;
            }
        }
        // Without a lease nothing was granted, and this one is not used.
        let lease = offer.lease.unwrap_or_else(|| Lease {
            by: 0,
            token: Uuid::nil(),
            lasts: Duration::ZERO,
            since: Instant::now(),
        });
        let stored = match store::insert(&self.pool, &incoming, &moves, lease).await {
            Ok(Ok(stored)) => stored,
            failed => {
                // A commit whose answer was lost has leased them all the same: they wait until that lease runs out.
                self.handover.stored(offer.grants, vec![], HashSet::new()).await;
                failed?.map_err(|store::Fenced| IntakeError::Fenced)?;
                return Ok(());
            }
        };
        metrics::counter!("hopline_webhook_deliveries_stored_total").increment(stored.len() as u64);
        let epochs: HashMap<Uuid, i64> = stored.iter().map(|one| (one.delivery_id, one.epoch)).collect();
        let (mut claimed, mut left) = (Vec::new(), HashSet::new());
        for one in incoming {
            let Some(&epoch) = epochs.get(&one.delivery.delivery_id) else { continue };
            if one.is_leased {
                claimed.push(to_send(one, epoch, lease));
            } else {
                left.insert((one.delivery.endpoint_id, one.delivery.workspace_id));
            }
        }
        self.handover.stored(offer.grants, claimed, left).await;
        self.moved(&moves)
    }

    /// Reads the deliveries of a batch that are not stored yet, and how far the batch moves each partition.
    async fn read(&self, messages: &[OwnedMessage]) -> Result<(Vec<Incoming>, Vec<Move>), IntakeError> {
        let Some(owned) = &self.owned else { return Ok((vec![], vec![])) };
        let mut incoming: Vec<Incoming> = Vec::with_capacity(messages.len());
        let mut seen = HashSet::with_capacity(messages.len());
        let mut reached: BTreeMap<i32, i64> = BTreeMap::new();
        for message in messages {
            let (partition, offset) = (message.partition(), message.offset());
            // What was fetched before the seek is stored already.
            if owned.next.get(&partition).is_none_or(|next| offset < *next) {
                continue;
            }
            match Delivery::decode(message.payload().unwrap_or_default()) {
                // The second of two in one batch would be granted a permit and never use it.
                Ok(delivery) if seen.insert(delivery.delivery_id) => incoming.push(Incoming {
                    delivery,
                    may_repeat: fan_out::may_repeat(message),
                    fanned_out_at: fan_out::broker_time(message),
                    is_leased: false,
                }),
                Ok(_) => {}
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
        if let Some(last) = incoming.last() {
            let age = (Utc::now() - last.fanned_out_at).to_std().unwrap_or_default();
            metrics::gauge!("hopline_webhook_intake_age_seconds").set(age.as_secs_f64());
        }
        let moves = reached
            .into_iter()
            .map(|(partition, to)| Move { partition, from: owned.next[&partition], to })
            .collect();
        Ok((incoming, moves))
    }

    /// Goes on from where a batch has moved the partitions.
    fn moved(&mut self, moves: &[Move]) -> Result<(), IntakeError> {
        let Some(owned) = &mut self.owned else { return Ok(()) };
        let mut offsets = TopicPartitionList::with_capacity(moves.len());
        for &Move { partition, to, .. } in moves {
            owned.next.insert(partition, to);
            offsets.add_partition_offset(&self.topic, partition, Offset::Offset(to))?;
        }
        self.consumer.report(&offsets);
        Ok(())
    }
}

/// A delivery that was stored under a lease.
fn to_send(incoming: Incoming, epoch: i64, lease: Lease) -> Claimed {
    let delivery = incoming.delivery;
    Claimed {
        delivery_id: delivery.delivery_id,
        endpoint_id: delivery.endpoint_id,
        workspace_id: delivery.workspace_id,
        epoch,
        event: delivery.event,
        body: Bytes::from(delivery.body),
        created_at: delivery.created_at,
        is_remembered: incoming.may_repeat,
        is_redelivery: false,
        attempt: 1,
        lease_token: lease.token,
        leased_at: lease.since,
    }
}
