-- Links, what must be told about them, and their conversions.

CREATE TABLE links (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces,
    user_id uuid NOT NULL REFERENCES users,
    slug text NOT NULL,
    name text NOT NULL,
    destination text NOT NULL,
    is_active boolean NOT NULL DEFAULT true,
    is_locked boolean NOT NULL DEFAULT false,
    redirect_status smallint NOT NULL DEFAULT 302 CHECK (redirect_status IN (301, 302, 307, 308)),
    forward_query text NOT NULL DEFAULT 'append' CHECK (forward_query IN ('off', 'append')),
    append_click_id boolean NOT NULL DEFAULT true,
    expires_at timestamptz,
    external_id text,
    tags text[] NOT NULL DEFAULT '{}',
    -- Raised by one with each change; readers of topic links ignore an older one.
    revision bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
-- A slug is unique over the service's host, not over a workspace.
CREATE UNIQUE INDEX links_slug ON links (slug);
CREATE UNIQUE INDEX links_external_id ON links (workspace_id, external_id);
CREATE INDEX links_newest_first ON links (workspace_id, created_at DESC, id DESC);

-- The ids of deleted links, for ever: no replay may bring one back.
CREATE TABLE deleted_links (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    deleted_at timestamptz NOT NULL
);

-- What is to be published, in the order of seq. A queue and not a log: rows go when Kafka has them, so a row
-- whose transaction commits late is not skipped as a cursor would skip it.
CREATE TABLE outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL,
    key text NOT NULL,
    value bytea NOT NULL
);

CREATE TABLE conversions (
    id uuid PRIMARY KEY,
    -- SHA-256 of the click id. Outlives the personal fields, so that a second conversion is refused for ever.
    click_sha256 bytea NOT NULL,
    click_id text,
    link_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    clicked_at timestamptz NOT NULL,
    external_user_id text,
    user_name text,
    user_email text,
    host text,
    page_url text,
    created_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX conversions_click ON conversions (click_sha256);
CREATE INDEX conversions_link ON conversions (link_id, clicked_at DESC, id DESC);
CREATE INDEX conversions_workspace ON conversions (workspace_id, clicked_at DESC, id DESC);
