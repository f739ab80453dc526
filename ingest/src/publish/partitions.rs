//! Chooses the partition of a click.

use std::sync::atomic::{AtomicI32, Ordering};

use schemas::topic;

/// How long clicks go to the same partition, in milliseconds.
///
/// Clicks that are sent together then form one batch of one partition instead of a small one for each partition, which
/// needs fewer requests and compresses better. The partitions still get equal shares each second.
const PARTITION_MILLIS: i64 = 50;

/// The number of partitions of topic `clicks`.
#[derive(Debug)]
pub struct Partitions {
    count: AtomicI32,
    /// A random start, so that edges do not all choose the same partition at the same time.
    offset: u16,
}

impl Default for Partitions {
    /// Returns the number of partitions that the topic is created with, which is used until Kafka answers.
    fn default() -> Self {
        Self { count: AtomicI32::new(topic::CLICKS.partitions), offset: rand::random() }
    }
}

impl Partitions {
    /// Returns the partition for clicks that are answered at a time in milliseconds since 1970.
    pub fn for_time(&self, millis: i64) -> i32 {
        // The remainder is below the count, which is an i32.
        (millis.div_euclid(PARTITION_MILLIS) + i64::from(self.offset)).rem_euclid(self.count().into()) as i32
    }

    /// Returns the partition of a click id. It is always the same, so that one processor sees all copies of a click.
    ///
    /// Uses only the partitions that the topic is created with. Otherwise copies from before and after partitions are
    /// added could be in different partitions.
    pub fn for_click_id(&self, click_id: &[u8]) -> i32 {
        let count = self.count().min(topic::CLICKS.partitions);
        // The remainder is below the count, which is an i32.
        (crc32fast::hash(click_id) % count.unsigned_abs()) as i32
    }

    fn count(&self) -> i32 {
        self.count.load(Ordering::Relaxed).max(1)
    }

    /// Stores the number that Kafka reports. Ignores 0.
    pub fn set(&self, count: usize) {
        if let Ok(count) = i32::try_from(count)
            && count > 0
        {
            self.count.store(count, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn click_ids_spread_evenly_over_the_partitions() {
        let partitions = Partitions::default();
        partitions.set(3);
        partitions.set(0);
        let mut counts = [0_u32; 3];
        for number in 0..3_000 {
            counts
                [usize::try_from(partitions.for_click_id(format!("click {number}").as_bytes())).unwrap()] +=
                1;
        }
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_click_id_keeps_its_partition_when_partitions_are_added() {
        let (before, after) = (Partitions::default(), Partitions::default());
        after.set(100);
        for number in 0..100 {
            let id = format!("click {number}");
            assert_eq!(before.for_click_id(id.as_bytes()), after.for_click_id(id.as_bytes()));
        }
    }

    #[test]
    fn clicks_change_partition_every_50_ms_and_spread_evenly() {
        let partitions = Partitions::default();
        partitions.set(4);
        let mut counts = [0_u32; 4];
        for time in (-1_000..1_000).map(|millis| millis + 1_800_000_000_000) {
            counts[usize::try_from(partitions.for_time(time)).unwrap()] += 1;
            if time % PARTITION_MILLIS != 0 {
                assert_eq!(partitions.for_time(time), partitions.for_time(time - 1));
            }
        }
        assert_eq!(counts, [500; 4]);
        assert!((0..4).contains(&partitions.for_time(i64::MIN / 2)));
    }
}
