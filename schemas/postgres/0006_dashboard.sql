-- What the dashboard needs: who is signed in, what keys are called, and imports of links.

-- A member who was removed keeps the row that links refer to, and nothing else.
ALTER TABLE users
    ADD COLUMN name text NOT NULL DEFAULT '',
    ADD COLUMN removed_at timestamptz;

-- Browsers in which somebody is signed in.
CREATE TABLE sessions (
    -- SHA-256 of the cookie's value: 256 bits of randomness need no slow hash.
    token_sha256 bytea PRIMARY KEY,
    user_id uuid NOT NULL REFERENCES users,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Written every few minutes, not at each request.
    seen_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sessions_user ON sessions (user_id);
CREATE INDEX sessions_age ON sessions (seen_at);

-- Attempts to sign in, by address and by email, over all instances. Unlogged: after a crash of Postgres everybody may
-- try anew, which costs less than writing every guess to disk.
CREATE UNLOGGED TABLE sign_in_attempts (
    -- A keyed hash: neither an address nor an email is kept.
    who bytea PRIMARY KEY,
    began_at timestamptz NOT NULL,
    attempts integer NOT NULL
);
CREATE INDEX sign_in_attempts_age ON sign_in_attempts (began_at);

ALTER TABLE api_keys
    ADD COLUMN name text NOT NULL DEFAULT 'API key' CHECK (name <> ''),
    -- Right to a minute: written once in a minute, not at each request.
    ADD COLUMN last_used_at timestamptz;

-- Imports of links from a file of CSV.
CREATE TABLE link_imports (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces,
    user_id uuid NOT NULL REFERENCES users,
    is_dry_run boolean NOT NULL,
    -- Null while the file is on its way.
    received_at timestamptz,
    -- Rows that are done; written in the transaction that makes their links, so none is done twice.
    created bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    -- The first refused rows and why.
    refusals jsonb NOT NULL DEFAULT '[]',
    done_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX link_imports_unfinished ON link_imports (created_at) WHERE done_at IS NULL;
CREATE INDEX link_imports_age ON link_imports (created_at);

-- The file, in the pieces in which it came.
CREATE TABLE link_import_pieces (
    import_id uuid NOT NULL REFERENCES link_imports ON DELETE CASCADE,
    number integer NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (import_id, number)
);
