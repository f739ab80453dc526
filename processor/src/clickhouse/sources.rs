//! Sources: the logs that the clicks of each partition come from.
//!
//! Offsets are not comparable between logs, so each log is a separate source with a number, which its rows carry. Table
//! `sources` has the topic's id, the partition and the first offset of each source.

use std::collections::BTreeMap;
use std::ops::Range;

use schemas::row::{FIRST_LOG, UPKEEP, log_of, partition_of, source};
use uuid::Uuid;

/// The first offset of a partition that its topic no longer has.
pub const NO_LOG: u64 = u64::MAX;

/// A source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Its number, which its rows carry; see [`schemas::row::source`].
    pub src: u32,
    /// Kafka's id of the topic.
    pub topic_id: Uuid,
    /// The first offset that belongs to this source; [`NO_LOG`] when the topic no longer has the partition.
    pub first_offset: u64,
    /// The shard of ClickHouse that has its rows, the same for all sources of a partition; 0 on a single server.
    pub shard: u16,
}

impl Source {
    /// Returns the partition.
    pub fn partition(&self) -> i32 {
        i32::from(partition_of(self.src))
    }

    /// Returns the number of the partition's next source; `None` when there are no more numbers.
    pub fn next_src(&self) -> Option<u32> {
        let next = source(log_of(self.src).checked_add(1)?, partition_of(self.src));
        // The highest numbers belong to other writers.
        (log_of(next) < log_of(UPKEEP)).then_some(next)
    }
}

/// All sources of all partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources(BTreeMap<u32, Source>);

impl Sources {
    /// Returns the number of a partition's current source, or of its first one when it has none yet.
    pub fn of(&self, partition: i32) -> u32 {
        self.last(partition).map_or_else(|| first_source(partition), |source| source.src)
    }

    /// Returns the current source of a partition, if it has one.
    pub fn last(&self, partition: i32) -> Option<Source> {
        self.of_partition(partition).next()
    }

    /// Returns whether a source is the current one of its partition.
    pub fn are_current(&self, src: u32) -> bool {
        self.of(i32::from(partition_of(src))) == src
    }

    /// Returns whether a partition had a source of another topic before.
    pub fn have_former(&self, partition: i32) -> bool {
        let ids = |source: Source| source.topic_id;
        self.last(partition)
            .is_some_and(|last| self.of_partition(partition).map(ids).any(|id| id != last.topic_id))
    }

    /// Returns the sources of a partition in its current topic, newest first, each with its offsets: later offsets
    /// belong to the next source.
    pub fn of_topic(&self, partition: i32) -> Vec<(Source, Range<u64>)> {
        let topic = self.last(partition).map(|source| source.topic_id);
        let mut end = u64::MAX;
        let mut logs = Vec::new();
        for source in self.of_partition(partition).take_while(|source| Some(source.topic_id) == topic) {
            logs.push((source, source.first_offset..end.max(source.first_offset)));
            end = end.min(source.first_offset);
        }
        logs
    }

    /// Returns the offsets of a source in the current topic; `None` when it belongs to a former topic.
    pub fn own(&self, src: u32) -> Option<Range<u64>> {
        let logs = self.of_topic(i32::from(partition_of(src)));
        logs.into_iter().find_map(|(source, own)| (source.src == src).then_some(own))
    }

    /// The sources of a partition, newest first.
    fn of_partition(&self, partition: i32) -> impl Iterator<Item = Source> {
        self.0.values().rev().copied().filter(move |source| source.partition() == partition)
    }
}

/// Returns the number of a partition's first source.
pub fn first_source(partition: i32) -> u32 {
    // Kafka numbers partitions from 0, and no topic has more than 65,536.
    source(FIRST_LOG, partition as u16)
}

impl FromIterator<Source> for Sources {
    fn from_iter<T: IntoIterator<Item = Source>>(sources: T) -> Self {
        Self(sources.into_iter().map(|source| (source.src, source)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(number: u16, partition: u16, topic: u128, first_offset: u64) -> Source {
        Source { src: source(number, partition), topic_id: Uuid::from_u128(topic), first_offset, shard: 0 }
    }

    #[test]
    fn the_newest_source_of_a_partition_is_current() {
        let sources = Sources::from_iter([log(1, 1, 7, 0), log(2, 1, 8, 0)]);
        assert_eq!((sources.of(0), sources.of(1)), (0x0001_0000, 0x0002_0001));
        assert!(sources.are_current(0x0001_0000) && sources.are_current(0x0002_0001));
        assert!(!sources.are_current(0x0001_0001));
        assert!(sources.have_former(1) && !sources.have_former(0));
    }

    #[test]
    fn each_log_of_a_topic_ends_where_the_next_begins() {
        // The third was truncated before the start of the second.
        let all = [log(1, 0, 6, 0), log(2, 0, 7, 0), log(3, 0, 7, 50), log(4, 0, 7, 30), log(1, 1, 7, 3)];
        let sources = Sources::from_iter(all);
        assert_eq!(sources.of_topic(0), [(all[3], 30..u64::MAX), (all[2], 50..50), (all[1], 0..30)]);
        assert_eq!(sources.of_topic(1), [(all[4], 3..u64::MAX)]);
        assert_eq!(sources.of_topic(2), []);
        assert_eq!((sources.own(all[1].src), sources.own(all[0].src)), (Some(0..30), None));
        assert!(sources.have_former(0) && !sources.have_former(1));
    }

    #[test]
    fn the_last_number_has_no_successor() {
        assert_eq!(log(1, 3, 7, 0).next_src(), Some(source(2, 3)));
        assert_eq!(log(log_of(UPKEEP) - 1, 3, 7, 0).next_src(), None);
    }
}
