-- Limits of what one account can make others store.

-- What an endpoint's queue could not take.
ALTER TABLE webhook_health
    -- Its queue has as many deliveries as may wait; counted every few seconds. Further ones are dropped.
    ADD COLUMN is_full boolean NOT NULL DEFAULT false,
    ADD COLUMN dropped bigint NOT NULL DEFAULT 0,
    ADD COLUMN first_dropped_at timestamptz,
    ADD COLUMN last_dropped_at timestamptz;
CREATE INDEX webhook_health_full ON webhook_health (endpoint_id) WHERE is_full;

-- Bytes of files that an account has sent to be imported on one day, also of uploads that were interrupted.
CREATE TABLE import_bytes (
    account_id uuid PRIMARY KEY REFERENCES accounts,
    day date NOT NULL,
    bytes bigint NOT NULL
);
