-- Up to which offset the rows of deleted_links and conversions have the records of a partition: those that Kafka calls
-- committed and that are not below it were lost with a ClickHouse that was restored from a backup, and are read again.
CREATE TABLE IF NOT EXISTS intake_positions
(
    topic String,
    partition Int32,
    next Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (topic, partition)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
