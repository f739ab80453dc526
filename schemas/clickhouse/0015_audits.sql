-- The results of the audits that processors run by themselves.
CREATE TABLE IF NOT EXISTS audits
(
    ended_at DateTime64(3, 'UTC') DEFAULT now64(3),
    -- 0: the log, the rows and the rollups were equal.
    differences UInt64,
    -- The report, as `processor audit --json` prints it.
    report String
)
ENGINE = MergeTree
ORDER BY ended_at;
