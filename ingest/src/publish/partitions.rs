//! Which partition a click goes to.

use std::sync::atomic::{AtomicI32, Ordering};

use schemas::topic;

/// How many partitions topic `clicks` has, as far as is known.
#[derive(Debug)]
pub struct Partitions(AtomicI32);

impl Default for Partitions {
    /// What the topic is created with: the best guess while Kafka is down.
    fn default() -> Self {
        Self(AtomicI32::new(topic::CLICKS.partitions))
    }
}

impl Partitions {
    /// Returns the partition of a click id: any, evenly, so that a hot link spreads.
    pub fn of(&self, click_id: &[u8]) -> i32 {
        let count = self.0.load(Ordering::Relaxed).max(1).unsigned_abs();
        // The remainder is below a count that was an i32.
        (crc32fast::hash(click_id) % count) as i32
    }

    /// Notes what Kafka says.
    pub fn set(&self, count: usize) {
        if let Ok(count) = i32::try_from(count)
            && count > 0
        {
            self.0.store(count, Ordering::Relaxed);
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
}
