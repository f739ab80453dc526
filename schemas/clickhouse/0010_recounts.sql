-- What recounts have made of User-Agents: the classes of rows are those of the log but for this. Which days a recount has
-- changed says table rebuilds; one that it does not name counts for nothing. Kept for ever, because a replay reads the
-- same classes out of it.
CREATE TABLE IF NOT EXISTS recounts
(
    recount UUID,
    user_agent String,
    purpose String,
    class LowCardinality(String),
    device_type LowCardinality(String),
    browser LowCardinality(String),
    os LowCardinality(String)
)
ENGINE = MergeTree
ORDER BY (recount, user_agent, purpose)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
