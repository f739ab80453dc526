-- Every conversion. It is written at least once, and one row of a click stays: count with FINAL or by distinct click.
-- Class, country and the like are those of its click, found in the raw rows by link, time and id of the click.
CREATE TABLE IF NOT EXISTS conversions
(
    workspace_id UUID,
    link_id UUID,
    -- When the click happened: a conversion belongs to its click's window.
    occurred_at DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    click_id String CODEC(ZSTD(1)),
    conversion_id UUID,
    converted_at DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1))
)
ENGINE = ReplacingMergeTree
ORDER BY (workspace_id, link_id, occurred_at, click_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
