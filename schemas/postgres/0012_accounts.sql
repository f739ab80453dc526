-- Roles, second factors, sessions that members can tell apart, and an audit trail that owners can read.

ALTER TABLE users DROP CONSTRAINT users_role_check;
UPDATE users SET role = 'editor' WHERE role = 'member';
ALTER TABLE users
    ADD CONSTRAINT users_role_check CHECK (role IN ('owner', 'editor', 'viewer')),
    -- The secret of the second factor, sealed like those of webhooks; it counts once it is confirmed by a code.
    ADD COLUMN totp_key_id smallint,
    ADD COLUMN totp_sealed bytea,
    ADD COLUMN totp_confirmed_at timestamptz,
    -- The step of the last code: no code is taken twice.
    ADD COLUMN totp_last_step bigint NOT NULL DEFAULT 0;

-- Codes that replace one of the second factor, each once. SHA-256: 80 bits of randomness need no slow hash.
CREATE TABLE recovery_codes (
    user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    code_sha256 bytea NOT NULL,
    PRIMARY KEY (user_id, code_sha256)
);

ALTER TABLE sessions
    ADD COLUMN id uuid NOT NULL DEFAULT gen_random_uuid(),
    ADD COLUMN user_agent text NOT NULL DEFAULT '';
CREATE UNIQUE INDEX sessions_id ON sessions (id);

-- The member who made it; null for an operator.
ALTER TABLE api_keys ADD COLUMN created_by uuid REFERENCES users;

ALTER TABLE audit_trail
    ADD COLUMN account_id uuid,
    ADD COLUMN workspace_id uuid;
CREATE INDEX audit_trail_account ON audit_trail (account_id, id DESC);
