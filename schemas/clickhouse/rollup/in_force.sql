-- Whether a rollup's row is of the version in force, where what a run is about to put in force already counts.
(if(link_id = toUUID('{zero}') AND (workspace_id, slice) IN (SELECT workspace_id, slice FROM ({known})),
    workspace_id, toUUID('{zero}')), slice, version)
IN (SELECT workspace_id, slice, max(version) FROM ({known}) GROUP BY workspace_id, slice)
