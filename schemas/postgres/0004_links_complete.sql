-- What lists of links are found by, and the requests that may be sent again.

-- Both are trusted extensions of every Postgres since 13: whoever may create in the database may create them.
-- pg_trgm finds a part of a text; btree_gin puts the workspace into the same index.
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE EXTENSION IF NOT EXISTS btree_gin;

-- Tags as lines of a text. A function, because array_to_string is not immutable for every type; for texts it is.
CREATE FUNCTION lines_of_tags(tags text[]) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT E'\n' || array_to_string(tags, E'\n') $$;

-- One index for tags and for search, each within a workspace. The expression is that of the query, to the letter;
-- neither a searched word nor any of the fields has a line break, so nothing is found across two of them. Most links have
-- no tags, and for those the function, which takes longer than the rest, is not called.
CREATE INDEX links_search ON links
    USING gin (workspace_id, tags, (slug || E'\n' || name || E'\n' || destination
        || CASE WHEN tags = '{}' THEN '' ELSE lines_of_tags(tags) END) gin_trgm_ops);

-- By name: the letters A to Z without regard to case, all else by code point, the same in every database.
CREATE INDEX links_by_name ON links (workspace_id, lower(name COLLATE "C"), id);

-- The rare states. The frequent ones are found soon enough on the way through the other indexes.
CREATE INDEX links_inactive ON links (workspace_id, created_at DESC, id DESC) WHERE NOT is_active;
CREATE INDEX links_locked ON links (workspace_id, created_at DESC, id DESC) WHERE is_locked;

-- Requests that callers named, and their answers, for 24 hours.
CREATE TABLE idempotency_keys (
    workspace_id uuid NOT NULL REFERENCES workspaces,
    key text NOT NULL,
    -- What was asked: another request under the same key is refused.
    request_sha256 bytea NOT NULL,
    -- Null only within the transaction that does the work.
    status smallint,
    body text,
    location text,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (workspace_id, key)
);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);
