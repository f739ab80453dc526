-- The generations of tables; the one with the highest number is current. A replay or a recount fills the tables of
-- the next one, and the row that it adds here at its end is the whole switch.
CREATE TABLE IF NOT EXISTS generations
(
    generation UInt32,
    at DateTime64(3, 'UTC'),
    -- What it was made for, for people who look.
    reason String
)
ENGINE = MergeTree
ORDER BY generation
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
INSERT INTO generations SELECT 1, now64(3), 'first' WHERE (SELECT count() FROM generations) = 0;
