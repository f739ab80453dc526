//! Events in, one delivery per endpoint out, in one Kafka transaction with the positions read.
//!
//! The endpoints are those of a moment after the messages were polled, so an endpoint that existed when a link
//! was clicked is never missed.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use chrono::{DateTime, Utc};
use rdkafka::{
    Message as _, TopicPartitionList,
    error::{KafkaError, KafkaResult},
    message::{Header, Headers as _, OwnedHeaders, OwnedMessage},
    producer::BaseRecord,
    topic_partition_list::Offset,
};
use schemas::message::{Click, DecodeError, LinkEvent, Message as _};
use schemas::topic;
use service::{Check, Shutdown, kafka::KafkaConfig};
use sqlx::PgPool;
use tokio::{task::spawn_blocking, time::sleep};
use uuid::Uuid;

use crate::{
    consumer::{Consumer, PAUSE, Polled},
    dead_letter::DeadLetter,
    earlier::{Earlier, Suspect},
    endpoints::Endpoints,
    event::Event,
    liveness::Liveness,
    store,
    transaction::{Transactions, is_abortable},
};

/// How long an event may wait for others to share its transaction.
const LINGER: Duration = Duration::from_millis(20);

/// The header of a delivery whose event may come again, or came before.
const MAY_REPEAT: &str = "may-repeat";

/// Messages of one transaction.
const BATCH: usize = 1000;

/// Fans events out until a stop is requested.
///
/// # Errors
/// When librdkafka refuses the settings. Anything else is tried again.
pub(crate) async fn fan_out(
    kafka: KafkaConfig,
    pool: PgPool,
    check: Check,
    shutdown: Shutdown,
) -> KafkaResult<()> {
    let topics = Topics::new(&kafka);
    let mut liveness = Liveness::new(check);
    let mut fan_out = FanOut {
        consumer: topics.consumer(&kafka)?,
        topics,
        pool,
        earlier: Earlier::new(kafka.clone(), kafka.topic(topic::CLICKS.name)),
        known: (0, Endpoints::default()),
        id: Uuid::now_v7(),
        transactions: None,
        kafka,
    };
    while !shutdown.requested() {
        // Before anything is read: where to go on is certain only when no former transaction is open.
        if fan_out.transactions.is_none() {
            let started = tokio::select! {
                started = liveness.during(fan_out.start_transactions()) => started,
                () = shutdown.wait() => break,
            };
            if let Err(error) = started {
                tracing::warn!("cannot start transactions: {error}");
                sleep(PAUSE).await;
                continue;
            }
        }
        let polled = tokio::select! {
            polled = liveness.poll(&fan_out.consumer, BATCH, LINGER) => polled,
            () = shutdown.wait() => break,
        };
        let Some(polled) = polled else {
            tracing::warn!("fan-out has been outside of its consumer group for too long and begins anew");
            fan_out.begin_anew()?;
            continue;
        };
        if polled.messages.is_empty() {
            continue;
        }
        let _hold = shutdown.hold("a fan-out transaction");
        // Messages that are not committed here are polled again, by this process or the next.
        match liveness.during(fan_out.pass_on(polled)).await {
            Ok(()) => liveness.done(),
            Err(error) => {
                metrics::counter!("hopline_fan_out_aborted_total").increment(1);
                tracing::warn!("fan-out begins again at its committed offsets: {error}");
                let recovered = tokio::select! {
                    recovered = liveness.during(fan_out.recover(&error)) => recovered,
                    () = shutdown.wait() => break,
                };
                if let Err(error) = recovered {
                    tracing::warn!("fan-out begins anew: {error}");
                    fan_out.begin_anew()?;
                }
            }
        }
    }
    // Leaving the group waits for its coordinator.
    let _ = spawn_blocking(move || drop(fan_out)).await;
    Ok(())
}

/// Full names of topics.
struct Topics {
    clicks: String,
    link_events: String,
    deliveries: String,
    dead_letters: String,
}

/// An event, or why there is none and what its bytes should have been.
type Decoded = Result<Event, (DecodeError, &'static str)>;

impl Topics {
    fn event(&self, message: &OwnedMessage) -> Decoded {
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

    fn consumer(&self, kafka: &KafkaConfig) -> KafkaResult<Consumer> {
        let group = kafka.topic("hopline-fan-out");
        Consumer::join(kafka, "dispatcher-fan-out", &group, &[&self.clicks, &self.link_events])
    }

    fn new(kafka: &KafkaConfig) -> Self {
        Self {
            clicks: kafka.topic(topic::CLICKS.name),
            link_events: kafka.topic(topic::LINK_EVENTS.name),
            deliveries: kafka.topic(topic::DELIVERIES.name),
            dead_letters: kafka.topic(topic::DEAD_LETTERS.name),
        }
    }
}

/// Why a batch was not passed on.
#[derive(Debug, thiserror::Error)]
enum PassOnError {
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
    #[error("cannot look for earlier clicks: {0}")]
    Earlier(#[source] KafkaError),
    #[error("Postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("the group has dropped this member")]
    NoMember,
}

struct FanOut {
    kafka: KafkaConfig,
    topics: Topics,
    consumer: Consumer,
    pool: PgPool,
    /// The endpoints, and the version at which they were read.
    known: (i64, Endpoints),
    earlier: Earlier,
    /// Names this process's transactions.
    id: Uuid,
    /// None at first, and after an error that it does not survive.
    transactions: Option<Transactions>,
}

impl FanOut {
    /// Passes a batch on as one transaction.
    async fn pass_on(&mut self, polled: Polled) -> Result<(), PassOnError> {
        let Polled { messages, membership } = polled;
        let membership = membership.ok_or(PassOnError::NoMember)?;
        self.refresh().await?;
        let events: Vec<_> = messages.iter().map(|message| self.topics.event(message)).collect();
        let repeats = self.repeats(&messages, &events).await?;
        let Some(transactions) = &self.transactions else { return Err(KafkaError::Canceled.into()) };
        transactions.begin()?;
        let deliveries = self.write(transactions, &messages, &events, &repeats).await?;
        transactions.commit(next_offsets(&messages)?, membership).await?;
        metrics::counter!("hopline_fan_out_events_total").increment(messages.len() as u64);
        metrics::counter!("hopline_fan_out_deliveries_total").increment(deliveries);
        Ok(())
    }

    /// Reads the endpoints again if any of them, or a plan, changed.
    async fn refresh(&mut self) -> sqlx::Result<()> {
        let version = store::endpoints_version(&self.pool).await?;
        if version != self.known.0 {
            // A change after the version was read raises it again, and is seen with the next batch at the latest.
            self.known = (version, store::enabled_endpoints(&self.pool).await?.into_iter().collect());
        }
        Ok(())
    }

    /// Returns the positions of clicks that were sent again and made their events when they came first.
    async fn repeats(
        &mut self,
        messages: &[OwnedMessage],
        events: &[Decoded],
    ) -> Result<HashSet<(i32, i64)>, PassOnError> {
        let suspects: Vec<Suspect> = messages
            .iter()
            .zip(events)
            .filter_map(|(message, event)| {
                let event = event.as_ref().ok().filter(|event| event.may_repeat)?;
                // Nobody hears of it anyway.
                self.known.1.matching(event).next()?;
                Some(Suspect {
                    partition: message.partition(),
                    offset: message.offset(),
                    click_id: event.id.clone(),
                    occurred_at: event.occurred_at,
                })
            })
            .collect();
        if suspects.is_empty() {
            return Ok(HashSet::new());
        }
        let repeats = self.earlier.repeats(&suspects).await.map_err(PassOnError::Earlier)?;
        metrics::counter!("hopline_fan_out_repeats_total").increment(repeats.len() as u64);
        Ok(repeats)
    }

    async fn write(
        &self,
        transactions: &Transactions,
        messages: &[OwnedMessage],
        events: &[Decoded],
        repeats: &HashSet<(i32, i64)>,
    ) -> KafkaResult<u64> {
        let mut deliveries = 0;
        for (message, event) in messages.iter().zip(events) {
            match event {
                Ok(event)
                    if event.may_repeat && repeats.contains(&(message.partition(), message.offset())) => {}
                Ok(event) => {
                    for endpoint in self.known.1.matching(event) {
                        let key = endpoint.id.to_string();
                        let value = event.delivery(endpoint.id).encode();
                        let mut record =
                            BaseRecord::to(&self.topics.deliveries).key(key.as_str()).payload(&*value);
                        if event.may_repeat {
                            let header = Header { key: MAY_REPEAT, value: Some("1") };
                            record = record.headers(OwnedHeaders::new().insert(header));
                        }
                        transactions.send(record).await?;
                        deliveries += 1;
                    }
                }
                Err((error, schema)) => {
                    let letter = DeadLetter::new(message, error, schema);
                    let record = BaseRecord::to(&self.topics.dead_letters)
                        .key(letter.key())
                        .payload(letter.payload())
                        .headers(letter.headers());
                    transactions.send(record).await?;
                }
            }
        }
        Ok(deliveries)
    }

    /// Gets ready to poll again what was not committed.
    ///
    /// # Errors
    /// When Kafka does not answer in time, or with an error.
    async fn recover(&mut self, error: &PassOnError) -> KafkaResult<()> {
        let usable = !matches!(error, PassOnError::Kafka(error) if !is_abortable(error));
        if let Some(transactions) = &self.transactions
            && matches!(error, PassOnError::Kafka(_))
            && (!usable || transactions.abort().await.is_err())
        {
            self.end_transactions();
        }
        sleep(PAUSE).await;
        self.start_transactions().await?;
        self.consumer.rewind().await
    }

    /// Makes sure that there is a producer.
    ///
    /// A new one of the same name ends the transaction whose outcome is unknown, so that the offsets become certain.
    async fn start_transactions(&mut self) -> KafkaResult<()> {
        if self.transactions.is_none() {
            self.transactions = Some(Transactions::start(&self.kafka, self.id).await?);
        }
        Ok(())
    }

    fn end_transactions(&mut self) {
        if let Some(transactions) = self.transactions.take() {
            transactions.drop_later();
        }
    }

    /// Goes on with clients that know nothing of what was: whatever Kafka's absence has done to the former ones, none
    /// of it lasts longer than that.
    fn begin_anew(&mut self) -> KafkaResult<()> {
        self.end_transactions();
        let consumer = self.topics.consumer(&self.kafka)?;
        std::mem::replace(&mut self.consumer, consumer).leave();
        Ok(())
    }
}

/// Tells whether a delivery's event may come again, or came before.
pub(crate) fn may_repeat(delivery: &OwnedMessage) -> bool {
    delivery.headers().is_some_and(|headers| headers.iter().any(|header| header.key == MAY_REPEAT))
}

/// The time of a message's record. Without one the message counts as new: better a delivery too many than none.
pub(crate) fn broker_time(message: &OwnedMessage) -> DateTime<Utc> {
    message.timestamp().to_millis().and_then(DateTime::from_timestamp_millis).unwrap_or_else(Utc::now)
}

/// The offsets to read next, after a batch.
fn next_offsets(messages: &[OwnedMessage]) -> KafkaResult<TopicPartitionList> {
    let mut next = BTreeMap::new();
    for message in messages {
        let offset = next.entry((message.topic(), message.partition())).or_insert(0);
        // Kafka commits the offset to read next, not the last one read.
        *offset = (*offset).max(message.offset() + 1);
    }
    let mut offsets = TopicPartitionList::with_capacity(next.len());
    for ((topic, partition), offset) in next {
        offsets.add_partition_offset(topic, partition, Offset::Offset(offset))?;
    }
    Ok(offsets)
}
