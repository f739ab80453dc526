//! `topic`: prints a topic's messages as lines of JSON.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use devstack::{Kind, kafka};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::metadata::{MetadataPartition, MetadataTopic};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::{Map, Value, json};

use crate::cli::Topic;
use crate::control;
use crate::folder::Folder;
use crate::terminal::print_line;

/// How long the request for metadata may take.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);

/// Prints the topic from its beginning to its end, or for ever with `--follow`.
pub(crate) async fn print(folder: &Folder, options: &Topic) -> anyhow::Result<()> {
    let client = match Kind::Kafka.external_url() {
        Some(brokers) => kafka::settings(&brokers, None, None).into_iter().collect(),
        None => {
            let status = control::status(folder).await?;
            status.kafka_client().context("Kafka is not running; `./dev up` starts it")?
        }
    };
    let (name, follow, max) = (options.name.clone(), options.follow, options.max);
    // The consumer blocks its thread; Ctrl-C ends the process.
    tokio::task::spawn_blocking(move || read(client, &name, follow, max.unwrap_or(u64::MAX))).await?
}

fn read(mut config: ClientConfig, name: &str, follow: bool, max: u64) -> anyhow::Result<()> {
    // The consumer does not join the group: it assigns partitions itself and commits nothing.
    config.set("group.id", "devstack-topic").set("enable.auto.commit", "false");
    config.set("enable.partition.eof", "true");
    let consumer: BaseConsumer = config.create()?;
    let mut unfinished = assign(&consumer, name)?;
    let mut printed = 0;
    while printed < max && (follow || !unfinished.is_empty()) {
        match consumer.poll(Duration::from_millis(500)) {
            Some(Ok(message)) => {
                print_line(&line(&message).to_string());
                printed += 1;
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                unfinished.remove(&partition);
            }
            Some(Err(error)) if !follow => return Err(error).context("could not read the topic"),
            // With --follow a broker may be down for a while.
            Some(Err(_)) | None => {}
        }
    }
    Ok(())
}

/// Assigns all partitions from their beginnings, and returns them.
fn assign(consumer: &BaseConsumer, name: &str) -> anyhow::Result<BTreeSet<i32>> {
    let metadata = consumer.fetch_metadata(None, METADATA_TIMEOUT).context("Kafka does not answer")?;
    let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == name) else {
        let names: Vec<&str> = metadata.topics().iter().map(MetadataTopic::name).collect();
        let others = if names.is_empty() {
            "Kafka has none".to_owned()
        } else {
            format!("Kafka has {}", names.join(", "))
        };
        bail!("there is no topic {name}; {others}");
    };
    let partitions: BTreeSet<i32> = topic.partitions().iter().map(MetadataPartition::id).collect();
    ensure!(!partitions.is_empty(), "the topic {name} has no partitions yet");
    let mut list = TopicPartitionList::new();
    for partition in &partitions {
        list.add_partition_offset(name, *partition, Offset::Beginning)?;
    }
    consumer.assign(&list)?;
    Ok(partitions)
}

fn line(message: &BorrowedMessage<'_>) -> Value {
    let headers = message.headers().map(|headers| {
        let pairs = headers.iter().map(|header| (header.key.to_owned(), text(header.value)));
        Value::Object(pairs.collect::<Map<_, _>>())
    });
    let mut line = json!({
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp().to_millis(),
        "key": text(message.key()),
        "value": value(message.payload()),
    });
    if let (Value::Object(fields), Some(headers)) = (&mut line, headers) {
        fields.insert("headers".to_owned(), headers);
    }
    line
}

/// Returns JSON unchanged, anything else as text.
fn value(bytes: Option<&[u8]>) -> Value {
    bytes.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_else(|| text(bytes))
}

fn text(bytes: Option<&[u8]>) -> Value {
    bytes.map_or(Value::Null, |bytes| Value::String(String::from_utf8_lossy(bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_value_is_shown_as_json() {
        assert_eq!(value(Some(br#"{"v":1}"#)), json!({"v": 1}));
        assert_eq!(value(Some(b"not json")), json!("not json"));
        assert_eq!(value(None), Value::Null);
    }
}
