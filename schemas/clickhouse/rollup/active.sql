-- Whether a rollup row is of the active version, where what a run is about to activate already counts. For a workspace as a
-- whole that is the newest one of its own and of all.
(if(link_id = toUUID('{zero}') AND (workspace_id, slice) IN (SELECT workspace_id, slice FROM ({known})),
    workspace_id, toUUID('{zero}')), slice, version)
IN (SELECT workspace_id, slice,
           greatest(newest, max(if(workspace_id = toUUID('{zero}'), newest, 0)) OVER (PARTITION BY slice))
    FROM (SELECT workspace_id, slice, max(version) AS newest FROM ({known}) GROUP BY workspace_id, slice))
