-- The tags of workspace $1, sorted, at most $2: from each to the next through the index, however many links have it.
WITH RECURSIVE found (tag) AS (
    (SELECT tag FROM link_tags WHERE workspace_id = $1 ORDER BY tag LIMIT 1)
    UNION ALL
    SELECT (SELECT next.tag FROM link_tags AS next
            WHERE next.workspace_id = $1 AND next.tag > found.tag ORDER BY next.tag LIMIT 1)
    FROM found WHERE found.tag IS NOT NULL
)
-- In the order in which they were found; sorting would wait for the last one.
SELECT tag FROM found WHERE tag IS NOT NULL LIMIT $2
