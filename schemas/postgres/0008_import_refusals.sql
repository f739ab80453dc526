-- All rejected rows of an import, and not only the first of them: a file of a million rows can have many.
CREATE TABLE link_import_refusals (
    import_id uuid NOT NULL REFERENCES link_imports ON DELETE CASCADE,
    -- As a spreadsheet numbers rows: the first one is 1, and empty ones count.
    line bigint NOT NULL,
    status smallint NOT NULL,
    message text NOT NULL,
    -- The beginning of the row, as it was in the file.
    content text NOT NULL,
    PRIMARY KEY (import_id, line)
);

ALTER TABLE link_imports DROP COLUMN refusals;
