-- All refused rows of an import, and not only the first of them: a file of a million rows can have many.
CREATE TABLE link_import_refusals (
    import_id uuid NOT NULL REFERENCES link_imports ON DELETE CASCADE,
    -- From 1, the header not counted.
    place bigint NOT NULL,
    status smallint NOT NULL,
    message text NOT NULL,
    PRIMARY KEY (import_id, place)
);

ALTER TABLE link_imports DROP COLUMN refusals;
