//! Numbers of sources: the logs that rows come from.

/// Returns the number of a source: the number of the partition's log in the upper 16 bits, the partition in the lower.
///
/// A recreated topic starts its offsets at 0 again, so it gets a new log number, which keeps its positions distinct.
/// Table `sources` has the topic id of each.
pub const fn source(log: u16, partition: u16) -> u32 {
    ((log as u32) << 16) | partition as u32
}

/// The first log of each partition.
pub const FIRST_LOG: u16 = 1;

/// Returns the log number of a [`source`].
pub const fn log_of(src: u32) -> u16 {
    (src >> 16) as u16
}

/// Returns the partition of a [`source`].
pub const fn partition_of(src: u32) -> u16 {
    (src & 0xffff) as u16
}

/// The source number of upkeep in table `owners`, so that its statements are fenced like a partition's inserts.
///
/// No partition has this number: a Kafka topic does not have 65,536 partitions.
pub const UPKEEP: u32 = source(u16::MAX, u16::MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_holds_its_log_and_partition() {
        assert_eq!(source(FIRST_LOG, 3), 0x0001_0003);
        assert_eq!((log_of(source(700, 65_000)), partition_of(source(700, 65_000))), (700, 65_000));
    }
}
