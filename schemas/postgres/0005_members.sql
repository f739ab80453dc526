-- Members who can sign in, and webhook secrets that are being replaced.

-- A PHC string of Argon2id. Null for an owner made with the account: there is nobody yet who could sign in.
ALTER TABLE users ADD COLUMN password_hash text;

-- The secret before the last rotation, sealed like the present one. Deliveries are signed with both until then.
ALTER TABLE webhook_endpoints
    ADD COLUMN previous_secret_key_id smallint,
    ADD COLUMN previous_secret_sealed bytea,
    ADD COLUMN previous_secret_until timestamptz,
    ADD CONSTRAINT webhook_endpoints_previous_secret CHECK (
        num_nulls(previous_secret_key_id, previous_secret_sealed, previous_secret_until) IN (0, 3)
    );
