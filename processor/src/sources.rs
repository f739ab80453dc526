//! Which source the clicks of each partition have.
//!
//! A source is a partition of one generation of the topic. Offsets mean nothing from one generation to the next, so
//! rows of a topic that was wiped keep their source, and those of the new one get another; see
//! [`mod@crate::operate::adopt_topic`].

use std::collections::BTreeMap;

use schemas::row::{FIRST_TOPIC, partition_of, source, topic_of};

/// The topic's generation of each partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources(BTreeMap<u16, u16>);

impl Sources {
    /// Returns the source of a partition.
    pub fn of(&self, partition: i32) -> u32 {
        // Kafka numbers partitions from 0, and a topic of more than 65,536 is beyond what one cluster holds.
        let partition = partition as u16;
        source(self.0.get(&partition).copied().unwrap_or(FIRST_TOPIC), partition)
    }

    /// Returns whether clicks still come from a source: it is not of a former log.
    pub fn are_current(&self, src: u32) -> bool {
        self.of(i32::from(partition_of(src))) == src
    }

    /// Returns whether a partition had another log before the one that it has now.
    pub fn have_former(&self, partition: i32) -> bool {
        topic_of(self.of(partition)) > FIRST_TOPIC
    }
}

impl FromIterator<(u16, u16)> for Sources {
    /// Takes partitions and their generations; a partition that is not among them is in its first.
    fn from_iter<T: IntoIterator<Item = (u16, u16)>>(generations: T) -> Self {
        Self(generations.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_has_the_source_of_its_own_generation() {
        let sources = Sources::from_iter([(1, 3)]);
        assert_eq!((sources.of(0), sources.of(1)), (0x0001_0000, 0x0003_0001));
        assert!(sources.are_current(0x0001_0000) && !sources.are_current(0x0002_0000));
        assert!(sources.are_current(0x0003_0001) && !sources.are_current(0x0001_0001));
        assert!(sources.have_former(1) && !sources.have_former(0));
    }
}
