-- One dimension of the days of slices, and what they add to months that were over before them: from raw rows.
INSERT INTO breakdowns (workspace_id, dimension, unit, link_id, class, start, value, slice, version, clicks, visitors)
SELECT workspace_id, '{dimension}', key.1, link, class, key.2, value, slice, {version}, day_clicks, day_visitors
FROM ({days})
ARRAY JOIN arrayConcat(
    [('day', day)],
    if(day < toStartOfMonth(slice), [('month', toStartOfMonth(day))], [])) AS key
WHERE {guard}
