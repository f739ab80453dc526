//! Names and settings of all topics. `api migrate` creates them; no broker or client auto-creates one.

/// A topic and the settings it is created with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topic {
    /// Name without the deployment's prefix.
    pub name: &'static str,
    /// Number of partitions at creation.
    pub partitions: i32,
    /// Broker settings of the topic.
    pub config: &'static [(&'static str, &'static str)],
}

const DAY_MS_14: &str = "1209600000";
const DAY_MS_30: &str = "2592000000";

/// Clicks from the edges. Key: the click id, which spreads a popular link over the partitions.
///
/// The broker's clock stamps each record, so record times never go backwards within a partition. A power loss on a
/// one-node Kafka loses what was not flushed, hence `flush.ms`. It takes effect only where the broker's
/// `log.flush.scheduler.interval.ms` is as short; `/readyz` reports when it is longer.
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

/// Links for the edges, compacted. Key: the link's id.
///
/// One partition: when a slug moves from one link to another, every reader must see both changes in the same order.
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

/// Messages that a consumer could not read: the original bytes, with position and reason in headers.
///
/// Its size limit is above the other topics', because the headers come on top.
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
    fn topic_links_has_one_partition() {
        assert_eq!(LINKS.partitions, 1);
    }

    #[test]
    fn topic_names_differ_in_more_than_dots_and_underscores() {
        // Kafka rejects a topic whose name differs from another's only in `.` and `_`.
        let mut names: Vec<String> = ALL.iter().map(|topic| topic.name.replace('.', "_")).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
