-- The days of one dimension, of every link or of every workspace: what breakdowns.sql puts together. Each is grouped for
-- itself, because to group the links' rows again takes longer than to read the clicks twice.
SELECT workspace_id, {link} AS link, class, toDate(occurred_at) AS day, toDate(broker_ts) AS slice,
       {dimension} AS value, count() AS day_clicks, uniqCombined64State({precision})(visitor) AS day_visitors
FROM clicks
WHERE toDate(broker_ts) IN ({run_slices}) AND {scope} AND link_id NOT IN (SELECT link_id FROM deleted_links)
GROUP BY workspace_id, link, class, day, slice, value
