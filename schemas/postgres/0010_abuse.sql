-- What operators stop: links, hosts of destinations, accounts.

ALTER TABLE accounts
    ADD COLUMN suspended_at timestamptz,
    ADD COLUMN suspended_reason text;

ALTER TABLE links
    -- Why an operator blocked this link.
    ADD COLUMN blocked_reason text,
    -- The blocked host that its destination is on.
    ADD COLUMN blocked_host text,
    -- Its account is suspended.
    ADD COLUMN is_suspended boolean NOT NULL DEFAULT false,
    ADD COLUMN is_blocked boolean NOT NULL
        GENERATED ALWAYS AS (blocked_reason IS NOT NULL OR blocked_host IS NOT NULL OR is_suspended) STORED;
CREATE INDEX links_blocked ON links (id) WHERE is_blocked;

-- Hosts that no destination may be on, nor on a subdomain of them: lower case, without a trailing dot.
CREATE TABLE blocked_hosts (
    host text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Slugs that links had. Until then only the same workspace may take one, or nobody where that is null.
CREATE TABLE former_slugs (
    slug text PRIMARY KEY,
    workspace_id uuid,
    until timestamptz NOT NULL
);
CREATE INDEX former_slugs_age ON former_slugs (until);
