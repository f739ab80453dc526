-- Stretches of a source that are done and have no rows: everything in them was a repeat, a dead letter or a click of a
-- deleted link, or its rows have been removed since. Where a source goes on is behind its last row, and behind each
-- stretch that begins there or before.
CREATE TABLE IF NOT EXISTS stretches
(
    src UInt32,
    first UInt64,
    next UInt64,
    -- The broker's time of the last record before `next`, by which a log that was cut and has grown again is known.
    broker_ts DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(next)
ORDER BY (src, first)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
