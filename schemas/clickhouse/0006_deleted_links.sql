-- Links that were deleted, for ever: whatever comes late or again for one of them is left out.
CREATE TABLE IF NOT EXISTS deleted_links
(
    link_id UUID,
    deleted_at DateTime64(3, 'UTC'),
    -- By this server's clock, so that readers can ask for what is new.
    added_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree
ORDER BY link_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
-- Which of them have had their rows removed.
CREATE TABLE IF NOT EXISTS purges
(
    link_id UUID,
    at DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY link_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
