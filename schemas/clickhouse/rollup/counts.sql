-- The hours and days of slices, and what they add to months that were over before them: from raw rows.
INSERT INTO counts (workspace_id, unit, link_id, class, start, slice, version, clicks, visitors)
SELECT workspace_id, key.1, key.2, class, key.3, slice, {version}, sum(hour_clicks),
       uniqCombined64MergeState({precision})(hour_visitors)
FROM
(
    SELECT workspace_id, link_id, class, toStartOfHour(occurred_at) AS hour, toDate(broker_ts) AS slice,
           count() AS hour_clicks, uniqCombined64State({precision})(visitor) AS hour_visitors
    FROM clicks
    WHERE toDate(broker_ts) IN ({run_slices}) AND {scope} AND link_id NOT IN (SELECT link_id FROM deleted_links)
    GROUP BY workspace_id, link_id, class, hour, slice
)
ARRAY JOIN arrayFlatten(arrayMap(
    link -> arrayConcat(
        [('hour', link, hour), ('day', link, toStartOfDay(hour))],
        if(toDate(hour) < toStartOfMonth(slice),
           [('month', link, toDateTime(toStartOfMonth(hour), 'UTC'))], [])),
    {links})) AS key
WHERE {guard}
GROUP BY workspace_id, key, class, slice
