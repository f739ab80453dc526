//! Commits offsets to Kafka, only so that tools can show the group's lag. Processors do not read them.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use crate::pipeline::lane_state::Phase;

/// The offsets that this process committed.
#[derive(Debug)]
pub struct Commits {
    topic: String,
    /// By partition.
    committed: Mutex<BTreeMap<i32, u64>>,
}

impl Commits {
    /// Creates it with nothing committed; `topic` is the full name.
    pub fn new(topic: String) -> Self {
        Self { topic, committed: Mutex::default() }
    }

    /// Commits the next offsets of the owned partitions that have changed since the last commit.
    ///
    /// All partitions must be assigned to this process: Kafka would accept commits for others too.
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
        let mut committed = self.committed.lock();
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

    /// Forgets revoked partitions; another process commits them now.
    pub fn forget(&self, partitions: &[i32]) {
        let mut committed = self.committed.lock();
        committed.retain(|partition, _| !partitions.contains(partition));
    }
}
