-- How many days of clicks the plan of a workspace shows, written once a night: the disk keeps them a while longer
-- than the plan shows them, so that an upgrade brings them back.
CREATE TABLE IF NOT EXISTS retention
(
    workspace_id UUID,
    days UInt32,
    at DateTime64(3, 'UTC')
)
ENGINE = MergeTree
ORDER BY (workspace_id, at);
