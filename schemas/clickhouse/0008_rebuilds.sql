-- Which broker's days of clicks were made again, written right before their rows are replaced.
CREATE TABLE IF NOT EXISTS rebuilds
(
    day Date,
    at DateTime64(3, 'UTC'),
    -- What for, for people who look.
    reason String,
    -- The rows of table recounts by which the day's clicks are read since; all zeros: those of before.
    recount UUID
)
ENGINE = MergeTree
ORDER BY (day, at)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
