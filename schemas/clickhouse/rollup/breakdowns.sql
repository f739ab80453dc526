-- One dimension of the days of slices, and what they add to months that were over before them.
INSERT INTO breakdowns (workspace_id, dimension, unit, link_id, class, start, value, slice, version, clicks, visitors)
SELECT workspace_id, '{dimension}', key.1, key.2, class, key.3, value, slice, {version}, sum(day_clicks),
       uniqCombined64MergeState({precision})(day_visitors)
FROM
(
    SELECT workspace_id, link_id, class, toDate(occurred_at) AS day, toDate(broker_ts) AS slice,
           {dimension} AS value, count() AS day_clicks, uniqCombined64State({precision})(visitor) AS day_visitors
    FROM clicks
    WHERE toDate(broker_ts) IN ({run_slices}) AND {scope} AND link_id NOT IN (SELECT link_id FROM deleted_links)
    GROUP BY workspace_id, link_id, class, day, slice, value
)
ARRAY JOIN arrayFlatten(arrayMap(
    link -> arrayConcat(
        [('day', link, day)],
        if(day < toStartOfMonth(slice), [('month', link, toStartOfMonth(day))], [])),
    {links})) AS key
WHERE {guard}
GROUP BY workspace_id, key, class, slice, value
