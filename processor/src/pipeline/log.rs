//! Reads Kafka's log: the offsets of the topic's partitions, the topic's id, single records, and the group's committed
//! offsets.
//!
//! Uses a separate client, because the consumer belongs to the thread that polls it.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use service::kafka::{Context, KafkaConfig, topic_ids};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::pipeline::decode::{Record, decode};

/// How long librdkafka's reasons of a failure, which are logged, may take.
const REASONS: Duration = Duration::from_millis(100);

/// Timeout of one request to Kafka. A question is repeated until this has passed, and takes twice as long at most.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before a question is repeated.
const PAUSE: Duration = Duration::from_millis(200);

/// Kafka's answer for a topic that does not exist.
const NO_TOPIC: KafkaError = KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition);

/// Returns whether the same question can soon be answered: the brokers are about to agree which of them leads a
/// partition or coordinates the group (of a new cluster, or after the loss of a broker), or librdkafka is about to know
/// a partition. It waits for that only while it joins, reads or writes.
const fn settles(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{
        CoordinatorLoadInProgress, CoordinatorNotAvailable, LeaderNotAvailable, NotCoordinator,
        NotLeaderForPartition, UnknownPartition,
    };
    matches!(
        code,
        NotCoordinator
            | CoordinatorNotAvailable
            | CoordinatorLoadInProgress
            | NotLeaderForPartition
            | LeaderNotAvailable
            | UnknownPartition
    )
}

/// Why the log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Kafka returned an error or did not answer.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// The topic of this name does not exist.
    #[error("there is no topic {0}: create it with `api migrate`")]
    NoTopic(String),
    /// The thread of the request panicked.
    #[error("asking Kafka panicked")]
    Panicked(#[from] tokio::task::JoinError),
}

/// The offsets of a partition, from `start` to before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first offset that retention has not removed.
    pub start: u64,
    /// The offset of the next record to be written.
    pub end: u64,
}

/// The parts of a record that identify its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The click's id; `None` when the record is not a valid click.
    pub click_id: Option<String>,
    /// The broker's time.
    pub broker_ts: Option<DateTime<Utc>>,
}

/// The topic of clicks, as seen by a group.
#[derive(Clone)]
pub struct Log {
    client: Arc<BaseConsumer<Context>>,
    settings: Arc<ClientConfig>,
    topic: Arc<str>,
    /// The topic's id, and when it was requested.
    last_id: Arc<Mutex<Option<(Instant, Uuid)>>>,
}

impl fmt::Debug for Log {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Log").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl Log {
    /// Creates the client without connecting; names are full names.
    ///
    /// # Errors
    /// When librdkafka rejects the settings.
    pub fn new(kafka: &KafkaConfig, topic: &str, group: &str) -> Result<Self, KafkaError> {
        let mut settings = kafka.client_config("processor-log");
        settings
            // Only to read the group's offsets; it never joins.
            .set("group.id", group)
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            // A reader of one record must fail if the record does not exist, and not read another one.
            .set("auto.offset.reset", "error");
        let client = settings.create_with_context(Context::default())?;
        let (client, settings) = (Arc::new(client), Arc::new(settings));
        Ok(Self { client, settings, topic: topic.into(), last_id: Arc::default() })
    }

    /// Returns the topic's full name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the number of the topic's partitions.
    ///
    /// # Errors
    /// Also when there is no such topic, or the user has no rights to it: that is not a topic without records.
    pub async fn partitions(&self) -> Result<i32, LogError> {
        let partitions = self.ask(|client, topic| {
            let metadata = client.fetch_metadata(Some(topic), TIMEOUT)?;
            let found = metadata.topics().first().ok_or(NO_TOPIC)?;
            match found.error() {
                Some(error) => Err(KafkaError::MetadataFetch(error.into())),
                None => Ok(i32::try_from(found.partitions().len()).unwrap_or(i32::MAX)),
            }
        });
        match partitions.await {
            Err(LogError::Kafka(NO_TOPIC)) => Err(LogError::NoTopic(self.topic.to_string())),
            partitions => partitions,
        }
    }

    /// Returns Kafka's id of the topic. A recreated topic has another id.
    pub async fn topic_id(&self) -> Result<Uuid, LogError> {
        self.topic_id_since(Instant::now()).await
    }

    /// Returns the topic's id as requested after a moment; concurrent callers share one request.
    ///
    /// Records that were read before that moment belong to the topic that has this id.
    pub async fn topic_id_since(&self, moment: Instant) -> Result<Uuid, LogError> {
        let mut last = self.last_id.lock().await;
        if let Some((asked_at, id)) = *last
            && asked_at >= moment
        {
            return Ok(id);
        }
        let asked_at = Instant::now();
        let ids = self.ask(|client, topic| {
            let ids = topic_ids(client.client(), &[topic], TIMEOUT)?;
            ids.get(topic).copied().ok_or(NO_TOPIC)
        });
        let id = ids.await?;
        *last = Some((asked_at, id));
        Ok(id)
    }

    /// Returns the group's committed offset of a partition, if there is one.
    pub async fn committed(&self, partition: i32) -> Result<Option<u64>, LogError> {
        self.ask(move |client, topic| {
            let mut asked = TopicPartitionList::new();
            asked.add_partition(topic, partition);
            one_offset(&client.committed_offsets(asked, TIMEOUT)?, topic, partition)
        })
        .await
    }

    /// Returns the offsets of a partition.
    pub async fn extent(&self, partition: i32) -> Result<Extent, LogError> {
        self.ask(move |client, topic| {
            let (start, end) = client.fetch_watermarks(topic, partition, TIMEOUT)?;
            Ok(Extent { start: u64::try_from(start).unwrap_or(0), end: u64::try_from(end).unwrap_or(0) })
        })
        .await
    }

    /// Returns the first offset whose broker time is later than `time`, if there is one.
    pub async fn first_after(&self, partition: i32, time: DateTime<Utc>) -> Result<Option<u64>, LogError> {
        self.ask(move |client, topic| {
            let mut asked = TopicPartitionList::new();
            asked.add_partition_offset(topic, partition, Offset::Offset(time.timestamp_millis() + 1))?;
            let answer = client.offsets_for_times(asked, TIMEOUT)?;
            one_offset(&answer, topic, partition)
        })
        .await
    }

    /// Returns the record at an offset, if it exists.
    pub async fn record(&self, partition: i32, offset: u64) -> Result<Option<LogRecord>, LogError> {
        let settings = Arc::clone(&self.settings);
        self.ask(move |_, topic| {
            // A consumer that reads cannot be shared.
            let reader: BaseConsumer<Context> = settings.create_with_context(Context::default())?;
            let mut start = TopicPartitionList::new();
            let wanted = i64::try_from(offset).unwrap_or(i64::MAX);
            start.add_partition_offset(topic, partition, Offset::Offset(wanted))?;
            reader.assign(&start)?;
            let asked_at = Instant::now();
            while asked_at.elapsed() < TIMEOUT {
                match reader.poll(TIMEOUT.saturating_sub(asked_at.elapsed())) {
                    Some(Ok(record)) if record.offset() == wanted => {
                        let record = Record::of(&record);
                        let click_id = decode(0, &record).ok().map(|row| row.click.click_id);
                        return Ok(Some(LogRecord { click_id, broker_ts: record.broker_ts }));
                    }
                    Some(Ok(_) | Err(KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset))) => {
                        return Ok(None);
                    }
                    // librdkafka retries by itself.
                    Some(Err(_)) | None => {}
                }
            }
            Err(KafkaError::OffsetFetch(RDKafkaErrorCode::OperationTimedOut))
        })
        .await
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl Fn(&BaseConsumer<Context>, &str) -> Result<T, KafkaError> + Send + 'static,
    ) -> Result<T, LogError> {
        let (client, topic) = (Arc::clone(&self.client), Arc::clone(&self.topic));
        let answer = spawn_blocking(move || {
            let until = Instant::now() + TIMEOUT;
            loop {
                let answer = question(&client, &topic);
                empty_queue(&client, if answer.is_err() { REASONS } else { Duration::ZERO });
                match answer.as_ref().err().and_then(KafkaError::rdkafka_error_code) {
                    Some(code) if settles(code) && Instant::now() < until => {
                        thread::sleep(PAUSE);
                        // By itself, librdkafka asks for new partitions and leaders after up to five minutes.
                        let left = until.saturating_duration_since(Instant::now());
                        let _ = client.fetch_metadata(Some(&topic), left);
                    }
                    _ => return answer,
                }
            }
        });
        Ok(answer.await??)
    }
}

/// Takes errors and log lines off the queue of a client that is not polled otherwise, for as long as `wait`, also if
/// more come: a broker whose certificate is wrong gives one at each connection.
fn empty_queue(client: &BaseConsumer<Context>, wait: Duration) {
    let until = Instant::now() + wait;
    while client.poll(until.saturating_duration_since(Instant::now())).is_some() {}
}

fn one_offset(answer: &TopicPartitionList, topic: &str, partition: i32) -> Result<Option<u64>, KafkaError> {
    let Some(found) = answer.find_partition(topic, partition) else { return Ok(None) };
    found.error()?;
    match found.offset() {
        Offset::Offset(offset) => Ok(u64::try_from(offset).ok()),
        _ => Ok(None),
    }
}
