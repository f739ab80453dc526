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

-- Running dispatchers. Each holds a session advisory lock under its number, so that the others see its end at once:
-- the lock goes with the connection, whatever ended it.
CREATE TABLE dispatchers (
    number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now()
);

-- Deliveries that are not finished. A dispatcher takes a row by a lease; a row whose lease ran out is free again.
CREATE TABLE webhook_deliveries (
    delivery_id uuid PRIMARY KEY,
    endpoint_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    -- The endpoint's epoch when this row was made: what is left of an earlier epoch is not sent any more.
    epoch bigint NOT NULL,
    event text NOT NULL,
    -- The exact bytes to sign and send.
    body bytea NOT NULL,
    created_at timestamptz NOT NULL,
    -- Attempts with a known outcome.
    attempts smallint NOT NULL DEFAULT 0,
    is_retry boolean NOT NULL GENERATED ALWAYS AS (attempts > 0) STORED,
    -- Its end goes to webhook_finished: its event may come again after this row is gone, or it is a test.
    is_remembered boolean NOT NULL DEFAULT false,
    -- Sent again on request; webhook_failed_deliveries has it.
    is_redelivery boolean NOT NULL DEFAULT false,
    due_at timestamptz NOT NULL,
    lease_until timestamptz,
    lease_token uuid,
    leased_by integer
    -- Rows come and go: what is left of those that went must not pile up in front of a long queue.
) WITH (autovacuum_vacuum_scale_factor = 0.02);
-- Each endpoint's queue, retries apart from first attempts: a claim takes a few from the front of each, however many
-- wait behind them.
CREATE INDEX webhook_deliveries_endpoint ON webhook_deliveries (endpoint_id, is_retry, due_at);
-- What a dispatcher that is no more has left behind.
CREATE INDEX webhook_deliveries_leased ON webhook_deliveries (leased_by) WHERE leased_by IS NOT NULL;

-- Deliveries that ended, kept for 24 hours: those whose event may come again, and tests.
CREATE TABLE webhook_finished (
    delivery_id uuid PRIMARY KEY,
    finished_at timestamptz NOT NULL,
    -- The endpoint that answered 2xx, and at which attempt; null when the delivery ended otherwise.
    delivered_to uuid,
    attempts smallint
);
CREATE INDEX webhook_finished_age ON webhook_finished (finished_at);

-- Up to where each partition of the events is in the queue, written in the transaction that inserts their deliveries,
-- and only from the value that the writer knows: a former owner of the partition inserts nothing. The offsets that Kafka
-- holds are for programs that watch lag.
CREATE TABLE webhook_offsets (
    topic text NOT NULL,
    partition_id integer NOT NULL,
    -- Kafka's id of the topic: one that was made anew has another, and its offsets begin again.
    topic_id uuid NOT NULL,
    next_offset bigint NOT NULL,
    PRIMARY KEY (topic, partition_id)
);

-- Failed attempts, kept for 7 days. A 2xx leaves no row.
CREATE TABLE webhook_failures (
    id uuid PRIMARY KEY,
    endpoint_id uuid NOT NULL,
    delivery_id uuid NOT NULL,
    event text NOT NULL,
    -- From 1 to 5; counted anew when the delivery is sent again on request.
    attempt smallint NOT NULL,
    -- Null when no answer came; then error_class says why.
    status_code smallint,
    error_class text,
    -- The first 4 KiB, as UTF-8.
    response_body text NOT NULL DEFAULT '',
    duration_ms integer NOT NULL,
    attempted_at timestamptz NOT NULL,
    -- Null after the last attempt.
    next_attempt_at timestamptz
);
CREATE INDEX webhook_failures_newest_first ON webhook_failures (endpoint_id, attempted_at DESC, id DESC);
CREATE INDEX webhook_failures_age ON webhook_failures (attempted_at);

-- Deliveries with at least one failed attempt, with the request's bytes, so that they can be sent again for 7 days
-- after the last failure.
CREATE TABLE webhook_failed_deliveries (
    delivery_id uuid PRIMARY KEY,
    endpoint_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    event text NOT NULL,
    body bytea NOT NULL,
    created_at timestamptz NOT NULL,
    failed_at timestamptz NOT NULL,
    -- Of the last failed attempt; attempts are counted anew when the delivery is sent again on request.
    status_code smallint,
    error_class text,
    -- Attempts when it last failed or arrived.
    attempts smallint NOT NULL,
    -- When it arrived all the same.
    delivered_at timestamptz
);
CREATE INDEX webhook_failed_deliveries_endpoint ON webhook_failed_deliveries (endpoint_id, failed_at);
CREATE INDEX webhook_failed_deliveries_age ON webhook_failed_deliveries (failed_at);

-- When each endpoint last answered 2xx, and when an attempt last failed. Separate from webhook_endpoints: dispatchers
-- write it all the time, and never wait for a caller that changes an endpoint.
CREATE TABLE webhook_health (
    endpoint_id uuid PRIMARY KEY,
    last_success_at timestamptz,
    last_failure_at timestamptz
) WITH (fillfactor = 50);

-- What the owner of an endpoint is to be told: 5, 10 and 15 exhausted deliveries in a row. The last one disables it.
CREATE TABLE webhook_notices (
    id uuid PRIMARY KEY,
    endpoint_id uuid NOT NULL REFERENCES webhook_endpoints ON DELETE CASCADE,
    consecutive_exhausted integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX webhook_notices_newest_first ON webhook_notices (endpoint_id, created_at DESC);

-- Sends failed deliveries of an enabled endpoint again, under their own ids and with their own bytes, and returns how
-- many: those named in `ids`, or, when that is null, those that failed last in [failed_from, failed_before) and have
-- not arrived since. What is on its way already is left alone, and so is what failed more than 7 days ago. At most
-- 50,000 at once, those that failed first: a statement that runs into its timeout would queue none, ever.
CREATE FUNCTION webhook_redeliver(
    endpoint uuid, ids uuid[], failed_from timestamptz, failed_before timestamptz
) RETURNS bigint LANGUAGE sql AS $$
    WITH queued AS (
        INSERT INTO webhook_deliveries
            (delivery_id, endpoint_id, workspace_id, epoch, event, body, created_at, is_redelivery, due_at)
        SELECT f.delivery_id, f.endpoint_id, f.workspace_id, e.epoch, f.event, f.body, f.created_at, true, now()
        FROM webhook_failed_deliveries f
        JOIN webhook_endpoints e ON e.id = f.endpoint_id AND e.status = 'enabled'
        WHERE f.endpoint_id = endpoint AND f.failed_at > now() - interval '7 days'
          AND CASE WHEN ids IS NULL
                   THEN f.delivered_at IS NULL AND f.failed_at >= failed_from AND f.failed_at < failed_before
                   ELSE f.delivery_id = ANY (ids) END
          AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.delivery_id = f.delivery_id)
        ORDER BY f.failed_at
        LIMIT 50000
        ON CONFLICT DO NOTHING
        RETURNING 1
    )
    SELECT count(*) FROM queued
$$;
