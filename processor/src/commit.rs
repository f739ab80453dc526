//! Telling Kafka how far the group is.
//!
//! A convenience: rows say for themselves what is stored, but skipping what is not needed saves time, and only
//! a committed offset covers dead letters and repeats behind the last row.
//!
//! With each offset goes the topic's generation that it is of, as Kafka's metadata: what was committed for a log that
//! was replaced since counts for nothing, whoever commits it and however late.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};
use schemas::row::topic_of;

use crate::lanes::Phase;

/// The offsets that this process has committed.
#[derive(Debug)]
pub struct Commits {
    topic: String,
    /// Source and offset, by partition.
    committed: Mutex<BTreeMap<i32, (u32, u64)>>,
}

impl Commits {
    /// Starts with nothing committed; `topic` is the full name.
    pub fn new(topic: String) -> Self {
        Self { topic, committed: Mutex::default() }
    }

    /// Commits how far the owned partitions are, if that is further than before.
    ///
    /// To be called only with partitions that are assigned: Kafka would accept others too.
    pub fn commit<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        phases: &[(i32, Phase)],
        mode: CommitMode,
    ) {
        if let Err(error) = self.try_commit(consumer, phases, mode) {
            // The next commit covers this one, and the rows cover both.
            tracing::warn!(%error, "cannot commit offsets: {error}");
        }
    }

    fn try_commit<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        phases: &[(i32, Phase)],
        mode: CommitMode,
    ) -> Result<(), KafkaError> {
        let mut committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut offsets = TopicPartitionList::new();
        for (partition, phase) in phases {
            let Phase::Owned { src, next, .. } = phase else { continue };
            if committed.get(partition) != Some(&(*src, *next)) {
                let mut offset = offsets.add_partition(&self.topic, *partition);
                offset.set_offset(Offset::Offset(i64::try_from(*next).unwrap_or(i64::MAX)))?;
                offset.set_metadata(topic_of(*src).to_string());
            }
        }
        if offsets.count() == 0 {
            return Ok(());
        }
        consumer.commit(&offsets, mode)?;
        for (partition, phase) in phases {
            if let Phase::Owned { src, next, .. } = phase {
                committed.insert(*partition, (*src, *next));
            }
        }
        Ok(())
    }

    /// Forgets partitions that were given back: another process commits them now.
    pub fn forget(&self, partitions: &[i32]) {
        let mut committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        committed.retain(|partition, _| !partitions.contains(partition));
    }
}
