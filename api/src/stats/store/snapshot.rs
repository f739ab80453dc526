//! The state of the tables that a query goes by.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use clickhouse::Row;
use clickhouse::error::Result;
use serde::Deserialize;
use uuid::Uuid;

use super::desk::Desk;
use super::source::Question;

/// Milliseconds of a day.
pub(super) const DAY: i64 = 86_400_000;

/// How far the rollups reach, and up to when every click is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The first day of the broker that the rollups do not have, in days since 1970; 0 when they have none.
    pub(super) closed_until: u16,
    /// The active version of each closed slice, from the first day that is asked about on, ascending.
    pub(super) versions: Vec<(u16, u64)>,
    /// Every click that the broker had taken by then is in the tables; not known before the first processor ran.
    pub(crate) as_of: Option<DateTime<Utc>>,
}

/// A row of one of the three tables that the state is in; what `number`, `value` and `closes` are depends on which.
#[derive(Row, Deserialize)]
struct StateRow {
    /// One of [`SOURCE`], [`SLICE`], [`LOG`].
    of: u8,
    number: u32,
    value: i64,
    closes: bool,
}

/// `number` is a source, and it is complete until `value`, in milliseconds since 1970.
const SOURCE: u8 = 1;
/// `number` is a day of the broker, `value` the newest version of its slice.
const SLICE: u8 = 2;
/// `number` is the source of the log that a partition has.
const LOG: u8 = 3;

/// The first offset of what stands for the log of a partition that the topic does not have any more.
const NO_LOG: u64 = u64::MAX;

/// How old a state may be that is used again. It is as true as when it was read: what it promises is never taken
/// back. Clicks that came since are counted all the same; only `as_of` and newly closed slices wait for the next one.
const RECENT: Duration = Duration::from_millis(100);

/// The last state that holds for every workspace, so that a busy instance does not ask for it with each request.
#[derive(Default)]
pub(super) struct Recent(Mutex<Option<State>>);

/// The rows that were there when they were asked for.
struct State {
    asked_at: Instant,
    rows: Arc<[StateRow]>,
}

impl Recent {
    fn last(&self) -> Option<Arc<[StateRow]>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|state| state.asked_at.elapsed() < RECENT).map(|state| Arc::clone(&state.rows))
    }

    fn keep(&self, asked_at: Instant, rows: Arc<[StateRow]>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(State { asked_at, rows });
    }
}

impl Snapshot {
    /// Reads the state for a question.
    ///
    /// A query that follows finds at least the rows that this state promises: a slice is closed, and a version becomes
    /// active, after its rows are stored.
    pub(crate) async fn read(desk: &Desk, question: &Question<'_>) -> Result<Self> {
        let first_day = question.window.start.div_euclid(DAY);
        let of_slices = question.of.of_slices(question.workspace);
        let is_everyones = of_slices.iter().all(Uuid::is_nil);
        if is_everyones && let Some(rows) = desk.recent.last() {
            return Ok(Self::of_rows(&rows, first_day));
        }
        let asked_at = Instant::now();
        let of_slices: Vec<String> = of_slices.iter().map(|id| format!("toUUID('{id}')")).collect();
        // One statement of three plain reads: subqueries in its columns would be run one after another.
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
        let rows = desk.query(&sql).with_setting("max_threads", "1").fetch_all::<StateRow>().await?;
        let rows: Arc<[StateRow]> = rows.into();
        if is_everyones {
            desk.recent.keep(asked_at, Arc::clone(&rows));
        }
        Ok(Self::of_rows(&rows, first_day))
    }

    /// Puts the rows together.
    fn of_rows(rows: &[StateRow], first_day: i64) -> Self {
        let those = |kind| rows.iter().filter(move |row| row.of == kind);
        // A log that was replaced has nothing to come; one of which nothing is said yet may have much.
        let counted =
            |log: &StateRow| those(SOURCE).find(|row| row.number == log.number).map(|row| row.value);
        let counted: Option<Vec<i64>> = those(LOG).map(counted).collect();
        let as_of = counted.and_then(|counted| counted.into_iter().min());
        let day = |row: &StateRow| u16::try_from(row.number).unwrap_or(u16::MAX);
        let closed_until =
            those(SLICE).filter(|row| row.closes).map(|row| day(row) + 1).max().unwrap_or_default();
        // No click was taken by the broker before it happened, so earlier slices have none of the asked ones.
        let mut versions: Vec<(u16, u64)> = those(SLICE)
            .filter(|row| day(row) < closed_until && i64::from(row.number) >= first_day)
            .map(|row| (day(row), row.value.unsigned_abs()))
            .collect();
        versions.sort_unstable();
        let as_of = as_of.and_then(DateTime::from_timestamp_millis);
        Self { closed_until, versions, as_of }
    }
}
