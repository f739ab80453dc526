-- What activates the rows of a run; one block, so all of its slices or none.
INSERT INTO slices (slice, workspace_id, version, last_block, at)
SELECT toDate((arrayJoin([{run_blocks}]) AS closed).1), toUUID('{workspace}'), {version}, closed.2, now64(3) WHERE {guard}
