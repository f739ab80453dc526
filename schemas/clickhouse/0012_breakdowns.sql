-- Clicks and visitors by each value of each dimension, by the day and the month (UTC) of the click.
-- Slices, versions, months and the link of all zeros as in counts; what comes late to a month is a row for each of its days.
CREATE TABLE IF NOT EXISTS breakdowns
(
    workspace_id UUID,
    -- country device_type browser os referrer utm_source utm_medium utm_campaign utm_term utm_content
    dimension LowCardinality(String),
    unit Enum8('day' = 2, 'month' = 3),
    link_id UUID,
    class LowCardinality(String),
    start Date CODEC(Delta(2), ZSTD(1)),
    -- Empty: not known.
    value String CODEC(ZSTD(1)),
    slice Date CODEC(Delta(2), ZSTD(1)),
    version UInt64 CODEC(ZSTD(1)),
    clicks UInt64 CODEC(ZSTD(1)),
    visitors AggregateFunction(uniqCombined64({precision}), UInt64) CODEC(ZSTD(1))
)
ENGINE = MergeTree
-- A year's window is in two partitions: each part that a query opens costs it more than reading its rows.
PARTITION BY toYear(slice)
ORDER BY (workspace_id, dimension, unit, link_id, class, start, value, slice, version)
-- Few rows to a granule: a query wants single rows, and a state of many visitors has up to 98 kB.
SETTINGS index_granularity = 512, index_granularity_bytes = 131072, fsync_after_insert = 1, fsync_part_directory = 1;
