-- Which log the clicks of each partition come from. A topic that was wiped or replaced starts its offsets again from 0,
-- so `processor adopt-topic` adds a generation of the partition: its rows have a source of their own, beside those of
-- the former log. The highest generation of a partition counts; a partition without a row is in its first one.
CREATE TABLE IF NOT EXISTS topic_generations
(
    partition UInt16,
    generation UInt16,
    at DateTime64(3, 'UTC'),
    -- What showed that the log is another one, for people who look.
    reason String
)
ENGINE = MergeTree
ORDER BY (partition, generation)
-- One that a power loss forgot would give the positions of the former log to the new one.
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
