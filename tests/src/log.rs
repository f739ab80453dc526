//! Reading a topic as a stranger would.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedHeaders, Headers as _};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use schemas::topic::Topic;

use crate::engines::Isolated;

/// How long Kafka may be silent before its end counts as out of reach.
const PATIENCE: Duration = Duration::from_secs(30);

/// A record as it stands in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Partition.
    pub partition: i32,
    /// Offset within the partition.
    pub offset: i64,
    /// The broker's or the producer's clock, as the topic says; milliseconds since 1970.
    pub timestamp: i64,
    /// Key, as text.
    pub key: String,
    /// Value.
    pub value: Vec<u8>,
    /// Names and values of the headers.
    pub headers: Vec<(String, Vec<u8>)>,
}

impl Record {
    /// The value as JSON.
    ///
    /// # Panics
    /// When it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.value).unwrap()
    }
}

/// Reads everything that is committed on a topic at this moment, partition by partition.
///
/// # Panics
/// As [`for_each_record`].
pub fn records(isolated: &Isolated, topic: Topic) -> Vec<Record> {
    let mut records = Vec::new();
    for_each_record(isolated, topic, |record| records.push(record));
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}

/// Gives `each` everything that is committed on a topic at this moment, in order within each partition.
///
/// For topics that do not fit into memory.
///
/// # Panics
/// When nothing comes from Kafka for 30 seconds.
pub fn for_each_record(isolated: &Isolated, topic: Topic, mut each: impl FnMut(Record)) {
    let name = isolated.topic(topic);
    let mut config = isolated.kafka();
    config
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.create().unwrap();
    let metadata = consumer.fetch_metadata(Some(&name), PATIENCE).unwrap();
    let partitions: Vec<i32> =
        metadata.topics()[0].partitions().iter().map(|partition| partition.id()).collect();
    let mut assignment = TopicPartitionList::new();
    for partition in &partitions {
        assignment.add_partition_offset(&name, *partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).unwrap();

    let mut heard = Instant::now();
    // A partition that grows while it is read says more than once that its end is reached.
    let mut ended = BTreeSet::new();
    while ended.len() < partitions.len() {
        assert!(heard.elapsed() < PATIENCE, "{name}: the end was not reached");
        match consumer.poll(Duration::from_secs(1)) {
            Some(Ok(message)) => each(Record {
                partition: message.partition(),
                offset: message.offset(),
                timestamp: message.timestamp().to_millis().unwrap_or_default(),
                key: String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned(),
                value: message.payload().unwrap_or_default().to_vec(),
                headers: message.headers().map(owned).unwrap_or_default(),
            }),
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ended.insert(partition);
            }
            // The consumer connects again by itself: the broker may have been frozen or restarted just now.
            Some(Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::BrokerTransportFailure,
            )))
            | None => continue,
            Some(Err(error)) => panic!("{name}: {error}"),
        }
        heard = Instant::now();
    }
}

fn owned(headers: &BorrowedHeaders) -> Vec<(String, Vec<u8>)> {
    headers.iter().map(|header| (header.key.to_owned(), header.value.unwrap_or_default().to_vec())).collect()
}
