//! Reads events from their topics and inserts their deliveries into the queue.
//!
//! The position of each partition is a row in Postgres, updated in the transaction that inserts the deliveries. Reading
//! continues from that row and not from Kafka's committed offset, and the row is only updated if it still has the value
//! that this process expects. So no event is skipped after a kill, and a process that lost a partition without noticing
//! inserts nothing.

mod consumer;
mod dead_letter;
mod endpoints;
mod event;
mod liveness;
mod position;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::future::try_join_all;
use rdkafka::Message as _;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::OwnedMessage;
use rdkafka::topic_partition_list::Offset;
use schemas::id::EndpointId;
use schemas::message::{Click, DecodeError, LinkEvent, Message as _};
use schemas::topic;
use service::kafka::{DeadLetters, KafkaConfig};
use service::traces::Tracer;
use service::{Check, LogLimit, Shutdown};
use sqlx::PgPool;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use uuid::Uuid;

use self::consumer::Consumer;
use self::dead_letter::Unreadable;
use self::endpoints::Endpoints;
use self::event::Event;
use self::liveness::Liveness;
use self::position::resume_at;
use crate::attempt::Claimed;
use crate::leases::handover::{Handover, Offer};
use crate::store::{Fenced, Lease, Move, NewDelivery, Partition, Position};
use crate::{store, trace};

/// How long an event waits for more events to share its transaction.
const LINGER: Duration = Duration::from_millis(5);

/// The same while there are no endpoints. A transaction then only moves positions.
const IDLE_LINGER: Duration = Duration::from_millis(500);

/// Maximum messages of one transaction.
const MAX_MESSAGES: usize = 1_000;

/// Maximum deliveries of one transaction. A message with more deliveries gets its own transaction.
const MAX_DELIVERIES: usize = 2_000;

/// The pause after an error.
const PAUSE: Duration = Duration::from_millis(500);

/// Inserts the deliveries of events into the queue until a stop is requested, and passes them on to be sent.
///
/// # Errors
/// When librdkafka rejects the settings. Everything else is retried.
pub(crate) async fn enqueue(
    kafka: KafkaConfig,
    pool: PgPool,
    handover: Handover,
    check: Check,
    tracer: Tracer,
    shutdown: Shutdown,
) -> KafkaResult<()> {
    let mut liveness = Liveness::new(check);
    let topics = Topics::new(&kafka);
    let mut enqueue = Enqueue {
        consumer: topics.consumer(&kafka)?,
        topics,
        dead_letters: DeadLetters::new(
            &kafka,
            kafka.topic(topic::DEAD_LETTERS.name),
            "dispatcher-dead-letters",
        )?,
        pool,
        handover,
        known: (0, Endpoints::default()),
        full: HashSet::new(),
        taken_over: None,
        positions: HashMap::new(),
        tracer,
    };
    let log_limit = LogLimit::default();
    while !shutdown.requested() {
        let outcome = tokio::select! {
            outcome = enqueue.step(&mut liveness) => outcome,
            // The current step is cancelled; the rows in Postgres have the position.
            () = shutdown.wait() => break,
        };
        if let Err(error) = outcome {
            metrics::counter!("hopline_webhook_enqueue_failures_total").increment(1);
            if log_limit.is_due() {
                tracing::warn!("reading events again from their stored positions: {error}");
            }
            enqueue.taken_over = None;
            if matches!(error, EnqueueError::Kafka(_) | EnqueueError::Outside) {
                // A new client, without any state that an outage of Kafka left in the former one.
                let consumer = enqueue.topics.consumer(&kafka)?;
                std::mem::replace(&mut enqueue.consumer, consumer).leave();
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = shutdown.wait() => break,
            }
        }
    }
    // Leaving the group blocks until its coordinator answers.
    let _ = spawn_blocking(move || drop(enqueue)).await;
    Ok(())
}

/// Full names of the topics with events.
struct Topics {
    clicks: String,
    link_events: String,
}

impl Topics {
    fn new(kafka: &KafkaConfig) -> Self {
        Self { clicks: kafka.topic(topic::CLICKS.name), link_events: kafka.topic(topic::LINK_EVENTS.name) }
    }

    fn consumer(&self, kafka: &KafkaConfig) -> KafkaResult<Consumer> {
        Consumer::join(kafka, &kafka.topic("hopline-dispatcher"), &[&self.clicks, &self.link_events])
    }

    /// Reads an event, or returns the error and the schema that its bytes do not match.
    fn event(&self, message: &OwnedMessage) -> Result<Event, (DecodeError, &'static str)> {
        let bytes = message.payload().unwrap_or_default();
        let accepted_at = broker_time(message);
        if message.topic() == self.clicks {
            Click::decode(bytes)
                .map(|click| Event::of_click(&click, accepted_at))
                .map_err(|error| (error, "click.v1"))
        } else {
            LinkEvent::decode(bytes)
                .map(|event| Event::of_link(&event, accepted_at))
                .map_err(|error| (error, "link_event.v1"))
        }
    }
}

/// Why a step must be retried.
#[derive(Debug, thiserror::Error)]
enum EnqueueError {
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
    #[error("Postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("another dispatcher has taken a partition over")]
    Fenced,
    #[error("the consumer was outside of its group for too long")]
    Outside,
}

impl From<Fenced> for EnqueueError {
    fn from(Fenced: Fenced) -> Self {
        Self::Fenced
    }
}

struct Enqueue {
    topics: Topics,
    consumer: Consumer,
    dead_letters: DeadLetters,
    pool: PgPool,
    handover: Handover,
    /// The endpoints and their version when they were read.
    known: (i64, Endpoints),
    /// The endpoints whose queue is full.
    full: HashSet<EndpointId>,
    /// The consumer's number of changes at the last takeover; `None` when partitions must be taken over first.
    taken_over: Option<u64>,
    /// The partitions of this process and their positions in Postgres.
    positions: HashMap<Partition, Position>,
    tracer: Tracer,
}

/// The content of one transaction.
#[derive(Default)]
struct Batch<'a> {
    deliveries: Vec<NewDelivery>,
    unreadable: Vec<Unreadable<'a>>,
    /// The next offset of each partition.
    reached: BTreeMap<Partition, i64>,
    /// The time of the last record.
    accepted_at: Option<DateTime<Utc>>,
}

impl Enqueue {
    async fn step(&mut self, liveness: &mut Liveness) -> Result<(), EnqueueError> {
        let changes = self.consumer.changes();
        if self.taken_over != Some(changes) {
            self.positions = liveness.during(self.take_over()).await?;
            self.taken_over = Some(changes);
        }
        let linger = if self.known.1.is_empty() { IDLE_LINGER } else { LINGER };
        let polled = liveness.poll(&self.consumer, MAX_MESSAGES, linger).await;
        let messages = polled.ok_or(EnqueueError::Outside)?;
        // After a change of the assignment, earlier messages may belong to another process. They are read again from
        // the stored positions.
        if self.consumer.changes() == changes && !messages.is_empty() {
            self.store(&messages, liveness).await?;
        }
        Ok(())
    }

    /// Seeks this process's partitions to their positions, and ensures that Postgres has a row for each.
    async fn take_over(&self) -> Result<HashMap<Partition, Position>, EnqueueError> {
        let partitions = self.consumer.partitions().unwrap_or_default();
        if partitions.is_empty() {
            return Ok(HashMap::new());
        }
        let stored = store::positions(&self.pool, &partitions).await?;
        let mut positions = HashMap::new();
        let (mut new, mut moves, mut jumps) = (Vec::new(), Vec::new(), Vec::new());
        for (partition, log) in self.consumer.logs(partitions).await? {
            let from = stored.get(&partition).copied();
            let (to, jump) = resume_at(from, log);
            match from {
                None => new.push((partition.clone(), to)),
                Some(from) if from != to => moves.push(Move { partition: partition.clone(), from, to }),
                Some(_) => {}
            }
            jumps.extend(jump.map(|jump| (partition.clone(), jump)));
            positions.insert(partition, to);
        }
        if !new.is_empty() {
            store::add_positions(&self.pool, &new).await??;
        }
        if !moves.is_empty() {
            store::move_positions(&self.pool, &moves).await??;
        }
        for (partition, jump) in jumps {
            jump.report(&partition);
        }
        let offsets = positions.iter().map(|(partition, at)| (partition, Offset::Offset(at.next)));
        self.consumer.read_from(consumer::list(offsets)?).await?;
        Ok(positions)
    }

    /// Inserts the deliveries of messages into the queue, in as many transactions as needed.
    async fn store(
        &mut self,
        messages: &[OwnedMessage],
        liveness: &mut Liveness,
    ) -> Result<(), EnqueueError> {
        liveness.during(self.refresh()).await?;
        let mut left = messages;
        while !left.is_empty() {
            let (batch, count) = self.collect_batch(left);
            liveness.during(self.insert(batch)).await?;
            liveness.done();
            left = &left[count..];
        }
        metrics::counter!("hopline_webhook_events_total").increment(messages.len() as u64);
        Ok(())
    }

    /// Reads the endpoints again if an endpoint or a plan has changed.
    ///
    /// Called after a poll, so that an endpoint that existed at the time of a click is never missed.
    async fn refresh(&mut self) -> sqlx::Result<()> {
        let (version, full) = store::version_and_full(&self.pool).await?;
        self.full = full;
        if version != self.known.0 {
            // A change after the version was read raises it again, so the next batch sees it at the latest.
            self.known = (version, store::enabled_endpoints(&self.pool).await?.into_iter().collect());
        }
        Ok(())
    }

    /// Collects messages until a transaction is full. Also returns their number.
    fn collect_batch<'a>(&self, messages: &'a [OwnedMessage]) -> (Batch<'a>, usize) {
        let mut batch = Batch::default();
        let mut seen = HashSet::new();
        for (count, message) in messages.iter().enumerate() {
            let partition = Partition::new(message.topic(), message.partition());
            if self.positions.get(&partition).is_none_or(|at| message.offset() < at.next) {
                continue;
            }
            match self.topics.event(message) {
                Ok(event) => {
                    let before = batch.deliveries.len();
                    if before > 0 && before + self.known.1.matching(&event).count() > MAX_DELIVERIES {
                        return (batch, count);
                    }
                    let deliveries = self
                        .known
                        .1
                        .matching(&event)
                        .map(|endpoint| event.delivery(endpoint.id, endpoint.account_id));
                    // A duplicate within one transaction would get a permit and never use it.
                    batch.deliveries.extend(deliveries.filter(|one| seen.insert(one.delivery_id)));
                }
                Err((error, schema)) => batch.unreadable.push(Unreadable::new(message, &error, schema)),
            }
            batch.reached.insert(partition, message.offset() + 1);
            batch.accepted_at = Some(broker_time(message));
        }
        (batch, messages.len())
    }

    /// Inserts a batch, moves the positions in the same transaction, and passes on deliveries that can be sent
    /// immediately.
    async fn insert(&mut self, batch: Batch<'_>) -> Result<(), EnqueueError> {
        let Batch { mut deliveries, unreadable, reached, accepted_at } = batch;
        let moves: Vec<Move> = reached
            .into_iter()
            .filter_map(|(partition, next)| {
                let from = *self.positions.get(&partition)?;
                Some(Move { partition, from, to: Position { next, ..from } })
            })
            .collect();
        if moves.is_empty() {
            return Ok(());
        }
        try_join_all(unreadable.iter().map(|one| one.write(&self.dead_letters))).await?;
        let mut dropped = HashMap::new();
        deliveries.retain(|one| {
            let is_full = self.full.contains(&one.endpoint_id);
            if is_full {
                *dropped.entry(one.endpoint_id).or_insert(0) += 1;
            }
            !is_full
        });
        let Offer { grants, lease } = self.ask(&mut deliveries).await;
        let inserted = match store::insert(&self.pool, &deliveries, &dropped, &moves, lease).await {
            Ok(Ok(inserted)) => inserted,
            failed => {
                // If only the answer to the commit was lost, the deliveries are leased and wait until the lease
                // expires.
                self.handover.stored(grants, vec![], HashSet::new()).await;
                failed??;
                return Ok(());
            }
        };
        metrics::counter!("hopline_webhook_deliveries_stored_total").increment(inserted.len() as u64);
        let dropped: i64 = dropped.values().sum();
        metrics::counter!("hopline_webhook_deliveries_dropped_total").increment(dropped.unsigned_abs());
        let epochs: HashMap<Uuid, i64> = inserted.iter().map(|one| (one.delivery_id, one.epoch)).collect();
        let (mut claimed, mut left) = (Vec::new(), HashSet::new());
        for one in deliveries {
            let Some(&epoch) = epochs.get(&one.delivery_id) else { continue };
            trace::enqueued(&self.tracer, &one);
            match lease {
                Some(lease) if one.is_leased => claimed.push(to_send(one, epoch, lease)),
                _ => _ = left.insert((one.endpoint_id, one.account_id)),
            }
        }
        if !(grants.is_empty() && left.is_empty()) {
            self.handover.stored(grants, claimed, left).await;
        }
        if let Some(accepted_at) = accepted_at {
            let age = (Utc::now() - accepted_at).to_std().unwrap_or_default();
            metrics::gauge!("hopline_webhook_enqueue_age_seconds").set(age.as_secs_f64());
        }
        self.update_positions(moves)
    }

    /// Requests which deliveries may be sent immediately, and marks them.
    async fn ask(&self, deliveries: &mut [NewDelivery]) -> Offer {
        if deliveries.is_empty() {
            return Offer::default();
        }
        let mut wanted = HashMap::new();
        for one in &*deliveries {
            *wanted.entry((one.endpoint_id, one.account_id)).or_insert(0) += 1;
        }
        let offer = self.handover.ask(wanted).await;
        let mut slots: HashMap<_, usize> =
            offer.grants.iter().map(|grant| (grant.endpoint_id, grant.slots)).collect();
        for one in deliveries {
            if let Some(slots @ 1..) = slots.get_mut(&one.endpoint_id) {
                *slots -= 1;
                one.is_leased = true;
            }
        }
        offer
    }

    /// Updates the positions after a transaction has moved them.
    fn update_positions(&mut self, moves: Vec<Move>) -> Result<(), EnqueueError> {
        let offsets = moves.iter().map(|one| (&one.partition, Offset::Offset(one.to.next)));
        self.consumer.report(&consumer::list(offsets)?);
        self.positions.extend(moves.into_iter().map(|one| (one.partition, one.to)));
        Ok(())
    }
}

/// Returns the time of a message's record. Without a time the message counts as new, because an extra delivery is
/// better than none.
fn broker_time(message: &OwnedMessage) -> DateTime<Utc> {
    message.timestamp().to_millis().and_then(DateTime::from_timestamp_millis).unwrap_or_else(Utc::now)
}

/// Converts a delivery that was inserted under a lease.
fn to_send(delivery: NewDelivery, epoch: i64, lease: Lease) -> Claimed {
    Claimed {
        delivery_id: delivery.delivery_id,
        endpoint_id: delivery.endpoint_id,
        workspace_id: delivery.workspace_id,
        account_id: delivery.account_id,
        epoch,
        event: delivery.event.to_owned(),
        body: Bytes::from(delivery.body),
        created_at: delivery.created_at,
        is_remembered: delivery.is_remembered,
        is_redelivery: false,
        attempt: 1,
        lease_token: lease.token,
        leased_at: lease.since,
    }
}
