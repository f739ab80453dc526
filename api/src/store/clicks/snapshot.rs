//! The state of the tables that a query relies on.

use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, Utc};
use clickhouse::error::Result;
use uuid::Uuid;

use super::pieces::DAY;
use super::query_pool::QueryPool;
use super::question::Question;
use super::recent::{LOG, SLICE, SOURCE, StateRow};

/// How far the rollups reach, and up to when every click is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The first broker day without rollups, in days since 1970; 0 without rollups.
    pub(super) closed_until: u16,
    /// The active version of each closed slice, from the window's first day on, ascending.
    pub(super) versions: Vec<(u16, u64)>,
    /// Every click that the broker had by then is stored; unknown before the first processor ran.
    pub(crate) as_of: Option<DateTime<Utc>>,
}

/// The first offset of the entry for a partition that the topic no longer has.
const NO_LOG: u64 = u64::MAX;

impl Snapshot {
    /// Reads the state for a question.
    ///
    /// A later query finds at least the rows that this state promises: rows are stored before a slice is closed or a
    /// version becomes active.
    pub(crate) async fn read(queries: &QueryPool, question: &Question<'_>) -> Result<Self> {
        let first_day = question.window.start.div_euclid(DAY);
        let of_slices = question.of.of_slices(question.workspace);
        let is_everyones = of_slices.iter().all(Uuid::is_nil);
        if is_everyones && let Some(rows) = queries.recent.last() {
            return Ok(Self::of_rows(&rows, first_day));
        }
        let asked_at = Instant::now();
        let of_slices: Vec<String> = of_slices.iter().map(|id| format!("toUUID('{id}')")).collect();
        // One statement of three reads: subqueries would run one after another.
        let sql = format!(
            "SELECT toUInt8({SOURCE}) AS of, toUInt32(src) AS number, toUnixTimestamp64Milli(max(as_of)) AS value,
                    false AS closes
             FROM progress GROUP BY src
             UNION ALL
             SELECT {LOG}, toUInt32(max(src)), toInt64(0), false
             FROM sources GROUP BY bitAnd(src, 65535) HAVING argMax(first_offset, src) < {NO_LOG}
             UNION ALL
             SELECT {SLICE}, toUInt32(toUInt16(slice)), toInt64(max(version)), toBool(max(workspace_id = {none}))
             FROM slices
             WHERE workspace_id IN ({workspaces})
             GROUP BY slice",
            workspaces = of_slices.join(", "),
            none = "toUUID('00000000-0000-0000-0000-000000000000')",
        );
        let rows = queries.query(&sql).with_setting("max_threads", "1").fetch_all::<StateRow>().await?;
        let rows: Arc<[StateRow]> = rows.into();
        if is_everyones {
            queries.recent.keep(asked_at, Arc::clone(&rows));
        }
        Ok(Self::of_rows(&rows, first_day))
    }

    /// Assembles the rows.
    fn of_rows(rows: &[StateRow], first_day: i64) -> Self {
        let those = |kind| rows.iter().filter(move |row| row.of == kind);
        // A replaced log gets no more clicks. A log without progress may still have many.
        let counted =
            |log: &StateRow| those(SOURCE).find(|row| row.number == log.number).map(|row| row.value);
        let counted: Option<Vec<i64>> = those(LOG).map(counted).collect();
        let as_of = counted.and_then(|counted| counted.into_iter().min());
        let day = |row: &StateRow| u16::try_from(row.number).unwrap_or(u16::MAX);
        let closed_until =
            those(SLICE).filter(|row| row.closes).map(|row| day(row) + 1).max().unwrap_or_default();
        // The broker takes no click before it happens, so earlier slices contain none of the window.
        let mut versions: Vec<(u16, u64)> = those(SLICE)
            .filter(|row| day(row) < closed_until && i64::from(row.number) >= first_day)
            .map(|row| (day(row), row.value.unsigned_abs()))
            .collect();
        versions.sort_unstable();
        let as_of = as_of.and_then(DateTime::from_timestamp_millis);
        Self { closed_until, versions, as_of }
    }
}
