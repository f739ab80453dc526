//! Events in, one delivery per endpoint out, in one Kafka transaction with the positions read.
//!
//! The endpoints are those of a moment after the messages were polled, so an endpoint that existed when a link
//! was clicked is never missed.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use rdkafka::{
    Message as _, TopicPartitionList,
    error::{KafkaError, KafkaResult},
    message::OwnedMessage,
    producer::BaseRecord,
    topic_partition_list::Offset,
};
use schemas::message::{Click, DecodeError, LinkEvent, Message as _};
use schemas::topic;
use service::{Shutdown, kafka::KafkaConfig};
use sqlx::PgPool;
use tokio::{task::spawn_blocking, time::sleep};
use uuid::Uuid;

use crate::{
    consumer::{Consumer, Membership, PAUSE, Polled},
    dead_letter::DeadLetter,
    endpoints::Endpoints,
    event::Event,
    store,
    transaction::{Transactions, is_abortable},
};

/// How long an event may wait for others to share its transaction.
const LINGER: Duration = Duration::from_millis(20);

/// Messages of one transaction.
const BATCH: usize = 1000;

/// Fans events out until a stop is requested.
///
/// # Errors
/// When librdkafka refuses the settings. Anything else is tried again.
pub(crate) async fn fan_out(kafka: KafkaConfig, pool: PgPool, shutdown: Shutdown) -> KafkaResult<()> {
    let topics = Topics::new(&kafka);
    let group = kafka.topic("hopline-fan-out");
    let consumer =
        Consumer::join(&kafka, "dispatcher-fan-out", &group, &[&topics.clicks, &topics.link_events])?;
    let mut fan_out = FanOut {
        topics,
        consumer,
        pool,
        known: (0, Endpoints::default()),
        id: Uuid::now_v7(),
        transactions: None,
        kafka,
    };
    while !shutdown.requested() {
        let polled = tokio::select! {
            polled = fan_out.consumer.poll(BATCH, LINGER) => polled,
            () = shutdown.wait() => break,
        };
        if polled.messages.is_empty() {
            continue;
        }
        let _hold = shutdown.hold("a fan-out transaction");
        // Messages that are not committed here are polled again, by this process or the next.
        if let Err(error) = fan_out.pass_on(polled).await {
            metrics::counter!("hopline_fan_out_aborted_total").increment(1);
            tracing::warn!("fan-out begins again at its committed offsets: {error}");
            tokio::select! {
                () = fan_out.recover(&error) => {}
                () = shutdown.wait() => break,
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

impl Topics {
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
    /// Names this process's transactions.
    id: Uuid,
    /// None before the first batch, and after an error that it does not survive.
    transactions: Option<Transactions>,
}

impl FanOut {
    /// Passes a batch on as one transaction.
    async fn pass_on(&mut self, polled: Polled) -> Result<(), PassOnError> {
        let Polled { messages, membership } = polled;
        let membership = membership.ok_or(PassOnError::NoMember)?;
        self.refresh().await?;
        if self.transactions.is_none() {
            self.transactions = Some(Transactions::start(&self.kafka, self.id).await?);
        }
        let Some(transactions) = &self.transactions else { return Ok(()) };
        transactions.begin()?;
        let deliveries = self.write(transactions, &messages, membership).await?;
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

    async fn write(
        &self,
        transactions: &Transactions,
        messages: &[OwnedMessage],
        membership: Membership,
    ) -> KafkaResult<u64> {
        let mut deliveries = 0;
        for message in messages {
            match self.event(message) {
                Ok(event) => {
                    for endpoint in self.known.1.matching(&event) {
                        let key = endpoint.id.to_string();
                        let value = event.delivery(endpoint.id).encode();
                        let record =
                            BaseRecord::to(&self.topics.deliveries).key(key.as_str()).payload(&*value);
                        transactions.send(record).await?;
                        deliveries += 1;
                    }
                }
                Err((error, schema)) => {
                    let letter = DeadLetter::new(message, &error, schema);
                    let record = BaseRecord::to(&self.topics.dead_letters)
                        .key(letter.key())
                        .payload(letter.payload())
                        .headers(letter.headers());
                    transactions.send(record).await?;
                }
            }
        }
        transactions.commit(next_offsets(messages)?, membership).await?;
        Ok(deliveries)
    }

    fn event(&self, message: &OwnedMessage) -> Result<Event, (DecodeError, &'static str)> {
        let bytes = message.payload().unwrap_or_default();
        let accepted_at = broker_time(message);
        if message.topic() == self.topics.clicks {
            Click::decode(bytes)
                .map(|click| Event::of_click(&click, accepted_at))
                .map_err(|error| (error, "click.v1"))
        } else {
            LinkEvent::decode(bytes)
                .map(|event| Event::of_link(&event, accepted_at))
                .map_err(|error| (error, "link_event.v1"))
        }
    }

    /// Gets ready to poll again what was not committed.
    async fn recover(&mut self, error: &PassOnError) {
        let usable = !matches!(error, PassOnError::Kafka(error) if !is_abortable(error));
        if let Some(transactions) = &self.transactions
            && matches!(error, PassOnError::Kafka(_))
            && (!usable || transactions.abort().await.is_err())
        {
            self.transactions = None;
        }
        // A new producer of the same name ends the transaction whose outcome is unknown, so that the offsets
        // become certain.
        loop {
            sleep(PAUSE).await;
            if self.transactions.is_none() {
                match Transactions::start(&self.kafka, self.id).await {
                    Ok(transactions) => self.transactions = Some(transactions),
                    Err(error) => {
                        tracing::warn!("cannot start transactions: {error}");
                        continue;
                    }
                }
            }
            match self.consumer.rewind().await {
                Ok(()) => return,
                Err(error) => tracing::warn!("cannot go back to the committed offsets: {error}"),
            }
        }
    }
}

/// The time of a message's record. Without one the message counts as new: better a delivery too many than none.
fn broker_time(message: &OwnedMessage) -> DateTime<Utc> {
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
