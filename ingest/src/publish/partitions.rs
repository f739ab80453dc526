//! Which partition a click goes to.

use std::sync::atomic::{AtomicI32, Ordering};

use schemas::topic;

/// How long clicks go to one partition before they go to the next, in milliseconds.
///
/// What is sent together is then one batch of one partition and not a small one for each: fewer requests, less to
/// compress. The partitions still get equal shares each second.
const SLICE: i64 = 50;

/// How many partitions topic `clicks` has, as far as is known.
#[derive(Debug)]
pub struct Partitions {
    count: AtomicI32,
    /// Where this edge begins, so that edges with the same clock do not all choose the same partition.
    offset: u16,
}

impl Default for Partitions {
    /// What the topic is created with: the best guess while Kafka is down.
    fn default() -> Self {
        Self { count: AtomicI32::new(topic::CLICKS.partitions), offset: rand::random() }
    }
}

impl Partitions {
    /// Returns the partition for clicks answered at that time, in milliseconds since 1970.
    pub fn at(&self, time: i64) -> i32 {
        // The remainder is below a count that is an i32.
        (time.div_euclid(SLICE) + i64::from(self.offset)).rem_euclid(self.count().into()) as i32
    }

    /// Returns the partition of a click id: always the same, so that one processor sees every copy of a click.
    ///
    /// Of a topic with at least as many partitions as we create it with, it is one of those: were it one that was added
    /// since, a copy from before would be elsewhere.
    pub fn of(&self, click_id: &[u8]) -> i32 {
        let count = self.count().min(topic::CLICKS.partitions);
        // The remainder is below a count that is an i32.
        (crc32fast::hash(click_id) % count.unsigned_abs()) as i32
    }

    fn count(&self) -> i32 {
        self.count.load(Ordering::Relaxed).max(1)
    }

    /// Notes what Kafka says.
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
    fn click_ids_spread_evenly_over_the_partitions_that_there_are() {
        let partitions = Partitions::default();
        partitions.set(3);
        partitions.set(0);
        let mut counts = [0_u32; 3];
        for number in 0..3_000 {
            counts[usize::try_from(partitions.of(format!("click {number}").as_bytes())).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_click_id_keeps_its_partition_when_partitions_are_added() {
        let (before, after) = (Partitions::default(), Partitions::default());
        after.set(100);
        for number in 0..100 {
            let id = format!("click {number}");
            assert_eq!(before.of(id.as_bytes()), after.of(id.as_bytes()));
        }
    }

    #[test]
    fn the_clicks_of_a_moment_stay_together_and_those_of_a_second_spread_evenly() {
        let partitions = Partitions::default();
        partitions.set(4);
        let mut counts = [0_u32; 4];
        for time in (-1_000..1_000).map(|millis| millis + 1_800_000_000_000) {
            counts[usize::try_from(partitions.at(time)).unwrap()] += 1;
            if time % SLICE != 0 {
                assert_eq!(partitions.at(time), partitions.at(time - 1));
            }
        }
        assert_eq!(counts, [500; 4]);
        assert!((0..4).contains(&partitions.at(i64::MIN / 2)));
    }
}
