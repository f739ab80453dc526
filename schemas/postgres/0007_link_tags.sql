-- Each tag of each link, so that the tags of a workspace are found without its links. Rows of their own and not numbers:
-- links that are made at once with the same tag do not wait for each other.
CREATE TABLE link_tags (
    workspace_id uuid NOT NULL,
    -- By code point: the order in which they are listed, the same in every database.
    tag text COLLATE "C" NOT NULL,
    link_id uuid NOT NULL,
    PRIMARY KEY (workspace_id, tag, link_id)
);

INSERT INTO link_tags (workspace_id, tag, link_id)
SELECT DISTINCT l.workspace_id, t.tag, l.id FROM links l, unnest(l.tags) AS t (tag);

-- Whatever writes links keeps it so.
CREATE FUNCTION keep_link_tags() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        DELETE FROM link_tags
        WHERE workspace_id = OLD.workspace_id AND tag = ANY (OLD.tags) AND link_id = OLD.id;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO link_tags (workspace_id, tag, link_id)
        SELECT NEW.workspace_id, t.tag, NEW.id FROM unnest(NEW.tags) AS t (tag)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER link_tags_of_new AFTER INSERT ON links
    FOR EACH ROW WHEN (NEW.tags <> '{}') EXECUTE FUNCTION keep_link_tags();
CREATE TRIGGER link_tags_of_changed AFTER UPDATE OF tags ON links
    FOR EACH ROW WHEN (NEW.tags <> OLD.tags) EXECUTE FUNCTION keep_link_tags();
CREATE TRIGGER link_tags_of_deleted AFTER DELETE ON links
    FOR EACH ROW WHEN (OLD.tags <> '{}') EXECUTE FUNCTION keep_link_tags();
