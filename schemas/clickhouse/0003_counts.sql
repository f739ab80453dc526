-- Clicks and visitors by the hour, the day and the month (UTC) of the click.
-- A row speaks for the clicks that the broker took on one day, the slice; of several versions of a slice one is
-- active, see slices. The link of all zeros is the whole workspace.
-- Months are different: while a month lasts it has no rows. The slice of its last day folds the days of all slices
-- up to then into one row, so that a year is twelve states to merge and not 365; later slices add a row for what
-- comes late. A month may be read from its own rows once the slice of its last day is closed.
CREATE TABLE IF NOT EXISTS counts
(
    workspace_id UUID,
    unit Enum8('hour' = 1, 'day' = 2, 'month' = 3),
    link_id UUID,
    class LowCardinality(String),
    start DateTime('UTC') CODEC(Delta(4), ZSTD(1)),
    slice Date CODEC(Delta(2), ZSTD(1)),
    version UInt64 CODEC(ZSTD(1)),
    clicks UInt64 CODEC(ZSTD(1)),
    -- Visitors as a mergeable state, not a number: the uniques of two hours do not add up.
    visitors AggregateFunction(uniqCombined64({precision}), UInt64) CODEC(ZSTD(1))
)
ENGINE = MergeTree
-- A year's window is in two partitions: each part that a query opens costs it more than reading its rows.
PARTITION BY toYear(slice)
ORDER BY (workspace_id, unit, link_id, class, start, slice, version)
-- Few rows to a granule: a query wants single rows, and a state of many visitors has up to 98 kB.
SETTINGS index_granularity = 512, index_granularity_bytes = 131072, fsync_after_insert = 1, fsync_part_directory = 1;
