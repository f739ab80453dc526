//! Reads topics with a plain Kafka client.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedHeaders, Headers as _};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use schemas::topic::Topic;

use crate::ANSWER;
use crate::engines::Isolated;

/// A record of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Partition.
    pub partition: i32,
    /// Offset within the partition.
    pub offset: i64,
    /// The broker's or the producer's time, depending on the topic, in milliseconds since 1970.
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
    /// When it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.value).unwrap()
    }

    /// Returns a header as text.
    ///
    /// # Panics
    /// When it is missing.
    pub fn header(&self, name: &str) -> String {
        let (_, value) = self.headers.iter().find(|(header, _)| header == name).unwrap();
        String::from_utf8_lossy(value).into_owned()
    }
}

/// Returns all committed records of a topic, partition by partition.
///
/// # Panics
/// As [`for_each_record`].
pub fn records(isolated: &Isolated, topic: Topic) -> Vec<Record> {
    let mut records = Vec::new();
    for_each_record(isolated, topic, |record| records.push(record));
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}

/// Calls `each` with all committed records of a topic, in order within each partition.
///
/// It also reads topics that do not fit into memory.
///
/// # Panics
/// When Kafka sends nothing for 30 seconds.
pub fn for_each_record(isolated: &Isolated, topic: Topic, mut each: impl FnMut(Record)) {
    let name = isolated.topic(topic);
    let mut config = isolated.kafka();
    config
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.create().unwrap();
    let metadata = consumer.fetch_metadata(Some(&name), ANSWER).unwrap();
    let partitions: Vec<i32> =
        metadata.topics()[0].partitions().iter().map(|partition| partition.id()).collect();
    let mut assignment = TopicPartitionList::new();
    for partition in &partitions {
        assignment.add_partition_offset(&name, *partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).unwrap();

    let mut heard = Instant::now();
    // A partition that grows while it is read reports its end more than once.
    let mut ended = BTreeSet::new();
    while ended.len() < partitions.len() {
        assert!(heard.elapsed() < ANSWER, "{name}: the end was not reached");
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
            // The consumer reconnects by itself. The broker may just have been frozen or restarted.
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
