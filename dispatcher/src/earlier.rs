//! Whether a click that was sent again stands in its topic already.
//!
//! An edge that was killed sends again whatever it has no report of, marked, to the same partition. The first copy,
//! if it arrived, made its event when it was read; the second must not make another one after the first delivery is
//! done and gone. The topic itself knows: it is read again from a little before the click, once for all the clicks
//! that come again together, and only when some do.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use rdkafka::{
    Message as _, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, KafkaResult},
    topic_partition_list::Offset,
};
use schemas::message::{Click, Message as _};
use service::kafka::{Context, KafkaConfig};
use tokio::{task::spawn_blocking, time::Instant};

/// How far an edge's clock may be ahead of the brokers'.
const CLOCK_TOLERANCE: TimeDelta = TimeDelta::minutes(5);

/// How far back to look. What comes again later than that is delivered again, unless `webhook_finished` knows it.
const MAX_AGE: TimeDelta = TimeDelta::hours(24);

/// Clicks of one partition that are held in memory, by 16 bytes each.
const MAX_CLICKS: i64 = 500_000;

/// How often one partition may be read from an earlier point than before.
const LOOK_BACK_EVERY: Duration = Duration::from_secs(30);

/// How long it is remembered what was read, for more that comes again.
const MEMORY: Duration = Duration::from_secs(300);

/// How long Kafka may take for a piece of the topic.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A click that may stand earlier in its partition.
#[derive(Debug, Clone)]
pub(crate) struct Suspect {
    /// Its partition.
    pub(crate) partition: i32,
    /// Its own offset.
    pub(crate) offset: i64,
    /// Its id.
    pub(crate) click_id: String,
    /// When its edge answered it.
    pub(crate) occurred_at: DateTime<Utc>,
}

/// What is known of earlier clicks.
pub(crate) struct Earlier {
    kafka: KafkaConfig,
    topic: String,
    /// Keyed at random, so that nobody can make two ids meet.
    hasher: RandomState,
    partitions: HashMap<i32, Seen>,
}

/// A stretch of a partition that was read.
#[derive(Debug)]
struct Seen {
    /// Its first offset.
    from: i64,
    /// The offset after its last.
    until: i64,
    /// The lowest offset of each click id in it.
    offsets: HashMap<u64, i64>,
    used_at: Instant,
    looked_back_at: Instant,
}

impl Earlier {
    /// Starts without any knowledge. `topic` is the full name.
    pub(crate) fn new(kafka: KafkaConfig, topic: String) -> Self {
        Self { kafka, topic, hasher: RandomState::new(), partitions: HashMap::new() }
    }

    /// Returns the positions of those clicks that stand earlier in their partition too.
    ///
    /// # Errors
    /// When the topic cannot be read.
    pub(crate) async fn repeats(&mut self, suspects: &[Suspect]) -> KafkaResult<HashSet<(i32, i64)>> {
        let now = Instant::now();
        self.partitions.retain(|_, seen| now.duration_since(seen.used_at) < MEMORY);
        let mut by_partition: HashMap<i32, Vec<&Suspect>> = HashMap::new();
        for suspect in suspects {
            by_partition.entry(suspect.partition).or_default().push(suspect);
        }
        let mut repeats = HashSet::new();
        for (partition, suspects) in by_partition {
            self.read(partition, &suspects).await?;
            let Some(seen) = self.partitions.get(&partition) else { continue };
            for suspect in suspects {
                let first = seen.offsets.get(&self.hasher.hash_one(&suspect.click_id));
                if first.is_some_and(|first| *first < suspect.offset) {
                    repeats.insert((partition, suspect.offset));
                }
            }
        }
        Ok(repeats)
    }

    /// Reads what is needed to judge these clicks of one partition and is not known yet.
    async fn read(&mut self, partition: i32, suspects: &[&Suspect]) -> KafkaResult<()> {
        let now = Instant::now();
        let oldest = Utc::now() - MAX_AGE;
        let since = suspects.iter().map(|one| one.occurred_at).filter(|at| *at > oldest).min();
        let end = suspects.iter().map(|one| one.offset).max();
        let Some((since, end)) = since.zip(end) else { return Ok(()) };
        let since = since - CLOCK_TOLERANCE;
        let known = self.partitions.remove(&partition);
        let may_look_back =
            known.as_ref().is_none_or(|seen| now.duration_since(seen.looked_back_at) > LOOK_BACK_EVERY);
        let from = if may_look_back { self.offset_at(partition, since).await? } else { None };
        let mut seen = match known {
            Some(seen) if seen.until - seen.from < MAX_CLICKS => seen,
            _ => {
                let from = from.unwrap_or(end).clamp(end.saturating_sub(MAX_CLICKS), end);
                Seen { from, until: from, offsets: HashMap::new(), used_at: now, looked_back_at: now }
            }
        };
        seen.used_at = now;
        if let Some(from) = from {
            seen.looked_back_at = now;
            let from = from.max(end - MAX_CLICKS);
            if from < seen.from {
                self.scan(partition, from, seen.from, &mut seen.offsets).await?;
                seen.from = from;
            }
        }
        if end > seen.until {
            self.scan(partition, seen.until, end, &mut seen.offsets).await?;
            seen.until = end;
        }
        self.partitions.insert(partition, seen);
        Ok(())
    }

    /// Returns the offset of the first message that the broker stamped at that time or later.
    async fn offset_at(&self, partition: i32, at: DateTime<Utc>) -> KafkaResult<Option<i64>> {
        let topic = self.topic.clone();
        self.blocking(move |consumer| {
            let mut times = TopicPartitionList::new();
            times.add_partition_offset(&topic, partition, Offset::Offset(at.timestamp_millis()))?;
            let found = consumer.offsets_for_times(times, TIMEOUT)?;
            let offset = found.elements().first().map(|one| one.offset());
            Ok(offset.and_then(|offset| offset.to_raw()).filter(|offset| *offset >= 0))
        })
        .await
    }

    /// Adds the clicks of `from..until` to `offsets`.
    async fn scan(
        &self,
        partition: i32,
        from: i64,
        until: i64,
        offsets: &mut HashMap<u64, i64>,
    ) -> KafkaResult<()> {
        let (topic, hasher) = (self.topic.clone(), self.hasher.clone());
        let found = self
            .blocking(move |consumer| {
                let mut start = TopicPartitionList::new();
                start.add_partition_offset(&topic, partition, Offset::Offset(from))?;
                consumer.assign(&start)?;
                let mut found = Vec::new();
                loop {
                    match consumer.poll(TIMEOUT) {
                        Some(Ok(message)) if message.offset() >= until => return Ok(found),
                        Some(Ok(message)) => {
                            if let Ok(click) = Click::decode(message.payload().unwrap_or_default()) {
                                found.push((hasher.hash_one(&click.click_id), message.offset()));
                            }
                            if message.offset() + 1 >= until {
                                return Ok(found);
                            }
                        }
                        Some(Err(KafkaError::PartitionEOF(_))) => return Ok(found),
                        Some(Err(error)) => return Err(error),
                        None => return Err(KafkaError::Canceled),
                    }
                }
            })
            .await?;
        metrics::counter!("hopline_fan_out_reread_total").increment(found.len() as u64);
        for (click, offset) in found {
            let first = offsets.entry(click).or_insert(offset);
            *first = offset.min(*first);
        }
        Ok(())
    }

    /// Asks with a consumer of its own, whose positions are nobody else's.
    async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&BaseConsumer<Context>) -> KafkaResult<T> + Send + 'static,
    ) -> KafkaResult<T> {
        let mut config = self.kafka.client_config("dispatcher-earlier");
        config
            // It joins no group, but librdkafka wants a name.
            .set("group.id", self.kafka.topic("hopline-earlier"))
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("queued.max.messages.kbytes", "4096");
        spawn_blocking(move || ask(&config.create_with_context(Context::default())?))
            .await
            // A panicked or cancelled thread is as good as no answer.
            .unwrap_or(Err(KafkaError::Canceled))
    }
}
