-- Webhook endpoints and the deliveries on their way to them.

CREATE TABLE webhook_endpoints (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces,
    url text NOT NULL,
    description text NOT NULL DEFAULT '',
    events text[] NOT NULL,
    click_classes text[] NOT NULL DEFAULT '{human}',
    status text NOT NULL DEFAULT 'enabled' CHECK (status IN ('enabled', 'disabled')),
    disabled_reason text,
    -- Deliveries in a row that used up all their attempts; 15 disable the endpoint.
    consecutive_exhausted integer NOT NULL DEFAULT 0,
    -- Raised by one when the endpoint is enabled again: an outcome of an earlier epoch counts no more.
    epoch bigint NOT NULL DEFAULT 1,
    -- Events before this are not for this endpoint.
    enabled_from timestamptz NOT NULL,
    -- Sealed (nonce and ciphertext) with the key of that id; the secret is shown once.
    secret_key_id smallint NOT NULL,
    secret_sealed bytea NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX webhook_endpoints_workspace ON webhook_endpoints (workspace_id, created_at DESC, id DESC);

-- One row, raised in every transaction that changes an endpoint or a plan: the dispatcher reads it after each
-- poll and loads the endpoints again when it moved, so an event is never matched against older endpoints.
CREATE TABLE endpoints_version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version bigint NOT NULL
);
INSERT INTO endpoints_version (version) VALUES (1);

-- Deliveries that are not finished. A dispatcher takes a row by a lease; a row whose lease ran out is free again.
CREATE TABLE webhook_deliveries (
    delivery_id uuid PRIMARY KEY,
    endpoint_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    event text NOT NULL,
    -- The exact bytes to sign and send.
    body bytea NOT NULL,
    created_at timestamptz NOT NULL,
    -- Attempts with a known outcome.
    attempts smallint NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL,
    lease_until timestamptz,
    lease_token uuid
);
-- Each endpoint's queue: a claim takes a few from its front, however many wait behind them.
CREATE INDEX webhook_deliveries_endpoint ON webhook_deliveries (endpoint_id, due_at);

-- Up to where each partition of topic webhook.deliveries is in the table above, written in the same transaction
-- as its rows. The offsets that Kafka holds are a convenience.
CREATE TABLE webhook_offsets (
    partition_id integer PRIMARY KEY,
    next_offset bigint NOT NULL
);

-- Failed attempts, kept for 7 days. A 2xx leaves no row.
CREATE TABLE webhook_failures (
    id uuid PRIMARY KEY,
    endpoint_id uuid NOT NULL,
    delivery_id uuid NOT NULL,
    event text NOT NULL,
    attempt smallint NOT NULL,
    -- Null when no answer came; then error_class says why.
    status_code smallint,
    error_class text,
    -- The first 4 KiB, as UTF-8.
    response_body text NOT NULL DEFAULT '',
    -- The request's bytes, so that the delivery can be sent again.
    request_body bytea NOT NULL,
    attempted_at timestamptz NOT NULL,
    next_attempt_at timestamptz
);
CREATE INDEX webhook_failures_newest_first ON webhook_failures (endpoint_id, attempted_at DESC, id DESC);
CREATE INDEX webhook_failures_age ON webhook_failures (attempted_at);
