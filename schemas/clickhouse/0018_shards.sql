-- The shard that has the clicks of a source, by macro `shard` of its servers; 0 on a single server. All sources of a
-- partition are on the same one.
ALTER TABLE sources ADD COLUMN IF NOT EXISTS shard UInt16;
