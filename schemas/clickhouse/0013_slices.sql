-- Which slices are closed, and which version of their rows is active.
-- A row with the workspace of all zeros closes a slice; the highest version of such rows is active for links.
-- When a deleted link leaves a workspace, the workspace's own rows are written again: for those, the highest version
-- of the rows with all zeros or with that workspace is active.
CREATE TABLE IF NOT EXISTS slices
(
    slice Date,
    workspace_id UUID,
    version UInt64,
    -- The number of the last block of clicks that the slice had when it was closed: a later one shows that rows came
    -- since, so that it is closed again.
    last_block Int64,
    at DateTime64(3, 'UTC')
)
ENGINE = MergeTree
ORDER BY (workspace_id, slice, version)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
