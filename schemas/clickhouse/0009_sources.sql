-- Which logs the clicks of each partition came from. A log is one topic, by the id that Kafka gave it, one partition, and
-- an offset from which on it is this log: a topic that was made anew has another id, and one that was cut and has grown
-- again is another log behind the cut. The number has the partition in its lower half and counts its logs in the upper
-- one; the highest of a partition is the one that is counted.
CREATE TABLE IF NOT EXISTS sources
(
    src UInt32,
    topic_id UUID,
    -- The largest number when the topic has no such partition any more: nothing is waited for.
    first_offset UInt64,
    at DateTime64(3, 'UTC'),
    -- What showed that the log is another one, for people who look.
    reason String
)
ENGINE = MergeTree
ORDER BY src
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
