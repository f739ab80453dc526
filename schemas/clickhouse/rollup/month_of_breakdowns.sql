-- One dimension of the months that end with slices, folded from the days of all slices up to then.
INSERT INTO breakdowns (workspace_id, dimension, unit, link_id, class, start, value, slice, version, clicks, visitors)
SELECT workspace_id, '{dimension}', 'month', link_id, class, toStartOfMonth(start) AS month, value,
       toLastDayOfMonth(month) AS fold, {version}, sum(clicks), uniqCombined64MergeState({precision})(visitors)
FROM breakdowns
WHERE dimension = '{dimension}' AND unit = 'day' AND {folded} AND toLastDayOfMonth(start) IN ({folds})
  AND toStartOfMonth(slice) = toStartOfMonth(start)
  AND slice BETWEEN toStartOfMonth(toDate('{first_fold}')) AND '{last_fold}'
  AND {active} AND {guard}
GROUP BY workspace_id, link_id, class, month, value
