-- Who uses Hopline: accounts with a plan, their members, their workspaces and the workspaces' keys.

CREATE TABLE accounts (
    id uuid PRIMARY KEY,
    name text NOT NULL CHECK (name <> ''),
    plan text NOT NULL CHECK (plan IN ('free', 'starter', 'pro', 'agency', 'business')),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE users (
    id uuid PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts,
    -- Null for an owner made with the account: there is nobody yet who could sign in.
    email text,
    role text NOT NULL CHECK (role IN ('owner', 'member')),
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX users_email ON users (lower(email));
CREATE INDEX users_account ON users (account_id);

CREATE TABLE workspaces (
    id uuid PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts,
    name text NOT NULL CHECK (name <> ''),
    kind text NOT NULL CHECK (kind IN ('personal', 'organization')),
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX workspaces_account ON workspaces (account_id);

CREATE TABLE api_keys (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces,
    -- SHA-256 of the key: 190 bits of randomness need no slow hash. The key itself is shown once.
    key_sha256 bytea NOT NULL,
    -- The first 13 characters, to tell keys apart.
    display_prefix text NOT NULL,
    scope text NOT NULL CHECK (scope IN ('read', 'read,write')),
    expires_at timestamptz,
    revoked_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX api_keys_sha256 ON api_keys (key_sha256);
CREATE INDEX api_keys_workspace ON api_keys (workspace_id);

-- Tokens of external redirect edges. Edges know them from topic links, not from here.
CREATE TABLE edge_tokens (
    id uuid PRIMARY KEY,
    -- Null: for the links of every workspace.
    workspace_id uuid REFERENCES workspaces,
    token_sha256 bytea NOT NULL UNIQUE,
    revoked_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Who changed what by an operator's command.
CREATE TABLE audit_trail (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}'
);

-- Requests of each account in the current minute, over all its keys, workspaces and API instances. Unlogged: after
-- a crash of Postgres a minute starts anew, which costs less than writing every request to disk.
CREATE UNLOGGED TABLE request_windows (
    account_id uuid PRIMARY KEY,
    minute timestamptz NOT NULL,
    used bigint NOT NULL
) WITH (fillfactor = 50);
