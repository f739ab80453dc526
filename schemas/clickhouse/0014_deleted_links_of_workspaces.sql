-- So that a question looks at its own workspace's deleted links only. Links that an earlier release deleted have no
-- workspace until `api admin publish-links` has told it.
ALTER TABLE deleted_links ADD COLUMN IF NOT EXISTS workspace_id UUID DEFAULT toUUID('00000000-0000-0000-0000-000000000000');
ALTER TABLE deleted_links MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild';
ALTER TABLE deleted_links ADD PROJECTION IF NOT EXISTS of_workspaces (SELECT workspace_id, link_id ORDER BY workspace_id, link_id);
ALTER TABLE deleted_links MATERIALIZE PROJECTION of_workspaces SETTINGS mutations_sync = 2;
