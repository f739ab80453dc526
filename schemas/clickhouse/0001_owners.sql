-- Who may insert rows of a source (a log of a partition): the holder of the highest epoch.
-- Taking over writes a higher epoch; every insert carries its own and is refused when it is not the highest.
CREATE TABLE IF NOT EXISTS owners
(
    src UInt32,
    epoch UInt64,
    -- Which process took over, for people who look.
    owner String,
    taken_at DateTime64(3, 'UTC')
)
ENGINE = MergeTree
ORDER BY (src, epoch)
-- A take-over that a power loss forgot would give a former owner its right back.
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
