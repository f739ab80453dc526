-- Every click, once: the pair (src, koff) is its position in the log.
-- A batch goes in as one block of one table partition, so it becomes one part: all of it or nothing.
CREATE TABLE IF NOT EXISTS clicks
(
    workspace_id UUID,
    link_id UUID,
    -- min(edge's clock, broker's clock): when the click counts.
    occurred_at DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    click_id String CODEC(ZSTD(1)),
    slug String CODEC(ZSTD(1)),
    class LowCardinality(String),
    -- Keyed hash of workspace, client address and User-Agent. The address itself is nowhere.
    visitor UInt64,
    -- In every column from here on, an empty string means: not known.
    country LowCardinality(String),
    device_type LowCardinality(String),
    browser LowCardinality(String),
    os LowCardinality(String),
    referrer String CODEC(ZSTD(1)),
    utm_source String CODEC(ZSTD(1)),
    utm_medium String CODEC(ZSTD(1)),
    utm_campaign String CODEC(ZSTD(1)),
    utm_term String CODEC(ZSTD(1)),
    utm_content String CODEC(ZSTD(1)),
    external_click_id String CODEC(ZSTD(1)),
    -- Kept so that classes, browsers and systems can be computed again under changed rules.
    user_agent String CODEC(ZSTD(1)),
    purpose LowCardinality(String),
    -- Whether the click was sent as a possible repeat.
    again Bool,
    -- The number of the log, see table sources.
    src UInt32,
    koff UInt64 CODEC(Delta(8), ZSTD(1)),
    -- The broker's clock; never runs backwards within a source.
    broker_ts DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    INDEX position koff TYPE minmax GRANULARITY 1,
    -- A deleted link is known by its id alone, without the workspace that the order begins with.
    INDEX link link_id TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
-- A slice of the rollups is a broker's day: closing one reads this partition and nothing else.
PARTITION BY toDate(broker_ts)
-- Not by the instant: a part then has a whole stretch of a link's rows for each hour, and merging parts copies stretches
-- instead of comparing row by row, which takes a third less time.
ORDER BY (workspace_id, link_id, toStartOfHour(occurred_at))
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
