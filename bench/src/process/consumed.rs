//! Consuming alone: the limit of Kafka and its client.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{Message as _, Offset, TopicPartitionList};
use schemas::topic;
use tokio::task::spawn_blocking;

use super::stage::{Round, Stage};

/// Reads the topic to its end with the processor's client settings, and ignores the values.
pub(super) async fn round(stage: &Stage) -> anyhow::Result<Round> {
    let mut config = stage.engines.kafka();
    config
        .set("group.id", "bench")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .set("queued.max.messages.kbytes", "16384")
        .set("fetch.queue.backoff.ms", "20");
    let topic = stage.engines.topic(topic::CLICKS);
    let before = stage.read(&[])?;
    let reading = spawn_blocking(move || {
        let consumer: BaseConsumer = config.create().context("cannot create a consumer")?;
        let mut all = TopicPartitionList::new();
        for partition in 0..topic::CLICKS.partitions {
            all.add_partition_offset(&topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&all)?;
        let (mut read, mut ends) = (0_u64, 0);
        let (mut first, mut received) = (None, Instant::now());
        while ends < topic::CLICKS.partitions {
            match consumer.poll(Duration::from_secs(1)) {
                Some(Ok(message)) => {
                    black_box(message.payload());
                    first.get_or_insert_with(Instant::now);
                    read += 1;
                }
                Some(Err(KafkaError::PartitionEOF(_))) => ends += 1,
                Some(Err(error)) => bail!("consuming failed: {error}"),
                None => {
                    ensure!(received.elapsed() < ::tests::PATIENCE, "no records from Kafka");
                    continue;
                }
            }
            received = Instant::now();
        }
        let seconds = first.context("the topic is empty")?.elapsed().as_secs_f64();
        anyhow::Ok((read, seconds))
    });
    let (read, seconds) = reading.await??;
    ensure!(read == stage.clicks, "{read} records on the topic instead of {}", stage.clicks);
    let cpu = stage.used(before, stage.read(&[])?);
    Ok(Round { rows_per_second: read as f64 / seconds, cpu_seconds_per_million: cpu })
}
