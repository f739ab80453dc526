//! Telling Kafka how far the group is, for whoever watches its lag. Nobody here reads it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use crate::pipeline::lanes::Phase;

/// The offsets that this process has committed.
#[derive(Debug)]
pub struct Commits {
    topic: String,
    /// By partition.
    committed: Mutex<BTreeMap<i32, u64>>,
}

impl Commits {
    /// Starts with nothing committed; `topic` is the full name.
    pub fn new(topic: String) -> Self {
        Self { topic, committed: Mutex::default() }
    }

    /// Commits how far the owned partitions are, if that is not what was committed last.
    ///
    /// To be called only with partitions that are assigned: Kafka would accept others too.
    pub fn commit<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        phases: &[(i32, Phase)],
        mode: CommitMode,
    ) {
        if let Err(error) = self.try_commit(consumer, phases, mode) {
            // The next commit covers this one.
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
            let Phase::Owned { next, .. } = phase else { continue };
            if committed.get(partition) != Some(next) {
                let offset = Offset::Offset(i64::try_from(*next).unwrap_or(i64::MAX));
                offsets.add_partition_offset(&self.topic, *partition, offset)?;
            }
        }
        if offsets.count() == 0 {
            return Ok(());
        }
        consumer.commit(&offsets, mode)?;
        for (partition, phase) in phases {
            if let Phase::Owned { next, .. } = phase {
                committed.insert(*partition, *next);
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
