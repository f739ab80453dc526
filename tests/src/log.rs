//! Reading a topic as a stranger would.

use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};
use schemas::topic::Topic;

use crate::engines::Isolated;

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
/// When Kafka does not answer within 30 seconds.
pub fn records(isolated: &Isolated, topic: Topic) -> Vec<Record> {
    let name = isolated.topic(topic);
    let mut config = isolated.kafka();
    config
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.create().unwrap();
    let metadata = consumer.fetch_metadata(Some(&name), Duration::from_secs(30)).unwrap();
    let partitions: Vec<i32> =
        metadata.topics()[0].partitions().iter().map(|partition| partition.id()).collect();
    let mut assignment = TopicPartitionList::new();
    for partition in &partitions {
        assignment.add_partition_offset(&name, *partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).unwrap();

    let deadline = Instant::now() + Duration::from_secs(30);
    let mut open = partitions.len();
    let mut records = Vec::new();
    while open > 0 {
        assert!(Instant::now() < deadline, "{name}: the end was not reached");
        match consumer.poll(Duration::from_secs(1)) {
            Some(Ok(message)) => records.push(Record {
                partition: message.partition(),
                offset: message.offset(),
                timestamp: message.timestamp().to_millis().unwrap_or_default(),
                key: String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned(),
                value: message.payload().unwrap_or_default().to_vec(),
            }),
            Some(Err(KafkaError::PartitionEOF(_))) => open -= 1,
            Some(Err(error)) => panic!("{name}: {error}"),
            None => {}
        }
    }
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}
