//! The position at which to continue in a partition that is taken over.

use super::consumer::Log;
use crate::store::{Partition, Position};

/// Why a partition continues elsewhere than at its stored position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Jump {
    reason: Reason,
    from: i64,
    to: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The log was truncated.
    BeyondEnd,
    /// Retention has removed records that were not read yet.
    BeforeStart,
    /// The topic was recreated, so every record of its log is new.
    OtherTopic,
}

impl Jump {
    /// Counts and logs it.
    pub(super) fn report(self, partition: &Partition) {
        let Self { reason, from, to } = self;
        let Partition { topic, number } = partition;
        let (label, text) = match reason {
            Reason::BeyondEnd => ("beyond-end", "the log was truncated; events are read from its end"),
            Reason::BeforeStart => ("before-start", "events were deleted unread; the others are read"),
            Reason::OtherTopic => ("other-topic", "the topic was made anew; its log is read from the start"),
        };
        metrics::counter!("hopline_webhook_position_jumps_total", "reason" => label).increment(1);
        tracing::warn!(
            topic = &**topic,
            partition = number,
            position = from,
            next = to,
            "partition {number} of {topic} continues at {to} instead of {from}: {text}"
        );
    }
}

/// Returns the position at which to continue, and why it differs from the stored one.
///
/// Kafka's committed offset is used only for a partition without a row in Postgres, so that old events are not sent
/// again after these rows were lost.
pub(super) fn resume_at(stored: Option<Position>, log: Log) -> (Position, Option<Jump>) {
    let known = stored.map(|stored| stored.next).or(log.committed);
    let is_other = stored.is_some_and(|stored| stored.topic_id != log.topic_id);
    let (next, reason) = match known {
        None => (log.start, None),
        Some(_) if is_other => (log.start, Some(Reason::OtherTopic)),
        Some(next) if next > log.end => (log.end, Some(Reason::BeyondEnd)),
        Some(next) if next < log.start => (log.start, Some(Reason::BeforeStart)),
        Some(next) => (next, None),
    };
    let jump = known.zip(reason).map(|(from, reason)| Jump { reason, from, to: next });
    (Position { topic_id: log.topic_id, next }, jump)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const ID: Uuid = Uuid::from_u128(1);
    const LOG: Log = Log { topic_id: ID, start: 10, end: 20, committed: Some(15) };

    fn from(stored: Option<(Uuid, i64)>, log: Log) -> (i64, Option<Reason>) {
        let (position, jump) = resume_at(stored.map(|(topic_id, next)| Position { topic_id, next }), log);
        assert_eq!(position.topic_id, ID);
        (position.next, jump.map(|jump| jump.reason))
    }

    #[test]
    fn a_stored_position_within_the_log_is_used() {
        for next in [10, 12, 20] {
            assert_eq!(from(Some((ID, next)), LOG), (next, None));
        }
    }

    #[test]
    fn a_position_outside_the_log_moves_to_the_nearer_end() {
        assert_eq!(from(Some((ID, 21)), LOG), (20, Some(Reason::BeyondEnd)));
        assert_eq!(from(Some((ID, 9)), LOG), (10, Some(Reason::BeforeStart)));
        assert_eq!(from(None, Log { committed: Some(21), ..LOG }), (20, Some(Reason::BeyondEnd)));
        assert_eq!(from(None, Log { committed: Some(0), ..LOG }), (10, Some(Reason::BeforeStart)));
    }

    #[test]
    fn the_log_of_another_topic_is_read_from_its_start() {
        assert_eq!(from(Some((Uuid::from_u128(2), 15)), LOG), (10, Some(Reason::OtherTopic)));
    }

    #[test]
    fn an_unknown_partition_continues_at_the_committed_offset_or_at_its_start() {
        assert_eq!(from(None, LOG), (15, None));
        assert_eq!(from(None, Log { committed: None, ..LOG }), (10, None));
    }
}
