-- What puts the rows of a run in force; one block, so all of its slices or none.
INSERT INTO {slices} (slice, workspace_id, version, at)
SELECT toDate(arrayJoin([{run_slices}])), toUUID('{workspace}'), {version}, now64(3) WHERE {guard}
