//! The topics: their names and settings, in one place. `api migrate` creates them; nothing auto-creates.

/// A topic and how it is to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topic {
    /// Name without the deployment's prefix.
    pub name: &'static str,
    /// Partitions at creation.
    pub partitions: i32,
    /// Broker settings of the topic.
    pub config: &'static [(&'static str, &'static str)],
}

const DAY_MS_14: &str = "1209600000";
const DAY_MS_30: &str = "2592000000";

/// Clicks, as the edge answered them. Key: the click id, so that a hot link spreads over the partitions.
///
/// The broker's clock stamps each record, so that its time never runs backwards within a partition. On a one-node Kafka
/// a power loss costs what was not flushed, hence `flush.ms`, which works where the broker's own
/// `log.flush.scheduler.interval.ms` looks as often; `/readyz` says so where it does not.
pub const CLICKS: Topic = Topic {
    name: "clicks",
    partitions: 6,
    config: &[
        ("message.timestamp.type", "LogAppendTime"),
        ("cleanup.policy", "delete"),
        ("retention.ms", DAY_MS_14),
        ("flush.ms", "1000"),
    ],
};

/// Links as edges need them, compacted. Key: the link's id.
///
/// One partition: when a slug moves from one link to another, every reader must see both in one order.
pub const LINKS: Topic = Topic {
    name: "links",
    partitions: 1,
    config: &[("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.1"), ("segment.ms", "3600000")],
};

/// What happened to links: created, updated, deleted. Key: the link's id.
pub const LINK_EVENTS: Topic = Topic {
    name: "link-events",
    partitions: 3,
    config: &[("cleanup.policy", "delete"), ("retention.ms", DAY_MS_14)],
};

/// Conversions without personal fields. Key: the click id.
pub const CONVERSIONS: Topic = Topic {
    name: "conversions",
    partitions: 3,
    config: &[("cleanup.policy", "delete"), ("retention.ms", DAY_MS_14)],
};

/// Messages that no consumer could read: the original bytes, with position and reason in headers.
///
/// Larger than any message it may have to hold, because the headers come on top.
pub const DEAD_LETTERS: Topic = Topic {
    name: "dead-letters",
    partitions: 1,
    config: &[("cleanup.policy", "delete"), ("retention.ms", DAY_MS_30), ("max.message.bytes", "2097152")],
};

/// Every topic.
pub const ALL: [Topic; 5] = [CLICKS, LINKS, LINK_EVENTS, CONVERSIONS, DEAD_LETTERS];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_one_partition_because_a_slugs_handover_needs_one_order() {
        assert_eq!(LINKS.partitions, 1);
    }

    #[test]
    fn no_two_topics_share_a_metric_name() {
        // Kafka refuses topics whose names differ only in `.` and `_`.
        let mut names: Vec<String> = ALL.iter().map(|topic| topic.name.replace('.', "_")).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
