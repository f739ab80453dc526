-- Up to when the clicks of each source are counted: every click that the broker took before as_of is a row.
CREATE TABLE IF NOT EXISTS progress
(
    src UInt32,
    as_of DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(as_of)
ORDER BY src;
