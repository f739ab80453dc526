-- The months that end with slices, folded from the days of all slices up to then.
INSERT INTO counts (workspace_id, unit, link_id, class, start, slice, version, clicks, visitors)
SELECT workspace_id, 'month', link_id, class, toDateTime(toStartOfMonth(start), 'UTC') AS month,
       toLastDayOfMonth(month) AS fold, {version}, sum(clicks), uniqCombined64MergeState({precision})(visitors)
FROM counts
WHERE unit = 'day' AND {folded} AND toLastDayOfMonth(start) IN ({folds}) AND toStartOfMonth(slice) = toStartOfMonth(start)
  AND slice BETWEEN toStartOfMonth(toDate('{first_fold}')) AND '{last_fold}'
  AND {active} AND {guard}
GROUP BY workspace_id, link_id, class, month
