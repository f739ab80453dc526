-- How far each generation of tables beyond the first was made, by a replay. The latest row of a generation counts:
-- whoever takes a broken off one up again goes on behind its step.
CREATE TABLE IF NOT EXISTS rebuilds
(
    generation UInt32,
    -- planned, copied, filled, rolled_up, switched, abandoned.
    step LowCardinality(String),
    -- What is to be done, as JSON; it stays the same from the first step on.
    plan String,
    -- Written again and again while somebody works on it, so that a second one can tell.
    at DateTime64(3, 'UTC')
)
ENGINE = MergeTree
ORDER BY (generation, at)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
