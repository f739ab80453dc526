-- Conversions, until their click is stored. Then a conversion is written to table `conversions`, with the time of the
-- click's row, and here again as counted, which replaces the row that waits.
CREATE TABLE IF NOT EXISTS waiting_conversions
(
    workspace_id UUID,
    link_id UUID,
    -- The time in the click's id, by the clock of its edge.
    occurred_at DateTime64(3, 'UTC'),
    click_id String,
    conversion_id UUID,
    converted_at DateTime64(3, 'UTC'),
    counted UInt8,
    added_at DateTime('UTC') DEFAULT now()
)
ENGINE = ReplacingMergeTree(counted)
ORDER BY (workspace_id, link_id, click_id)
-- Counted rows would make reading the others slow. They go after the rows that they replace, with which they are merged
-- from the tenth minute on. 30 days after a conversion was read, its click counts as lost.
TTL added_at + INTERVAL 20 MINUTE DELETE WHERE counted = 1, added_at + INTERVAL 30 DAY DELETE
SETTINGS merge_with_ttl_timeout = 600, min_age_to_force_merge_seconds = 600, fsync_after_insert = 1, fsync_part_directory = 1;
