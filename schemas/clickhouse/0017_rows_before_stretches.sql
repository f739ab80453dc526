-- The offset after the last row before a stretch's end, also when that row has been removed since; 0 when there was none. On
-- replicas, an insert names the row that it follows, and each row can be followed once: a row that was removed must not
-- make an earlier one the last again.
ALTER TABLE stretches ADD COLUMN IF NOT EXISTS rows_end UInt64 DEFAULT 0;
