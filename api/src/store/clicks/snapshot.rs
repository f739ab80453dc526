//! The state of the tables that a query relies on.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use clickhouse::error::{Error, Result};
use service::clickhouse::Everywhere;
use uuid::Uuid;

use super::pieces::DAY;
use super::query_pool::QueryPool;
use super::question::Question;
use super::recent::{LOG, NEWEST, SLICE, SOURCE, StateRow};

/// How far the rollups reach, and up to when every click is there.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    /// The first broker day without rollups, in days since 1970; 0 without rollups.
    pub(super) closed_until: u16,
    /// The active version of each closed slice, from the window's first day on, ascending.
    pub(super) versions: Vec<(u16, u64)>,
    /// Every click that the broker had by then is stored; unknown before the first processor ran.
    pub(crate) as_of: Option<DateTime<Utc>>,
    /// Later raw rows do not count, in milliseconds since 1970: other replicas may not have them yet.
    pub(super) raw_until: Option<i64>,
    /// Where the rows are.
    pub(super) tables: Everywhere,
}

/// How long a state of a single server is reused. Its promises are never revoked, and newer clicks are counted anyway;
/// only `as_of` and newly closed slices wait for the next read.
const RECENT: Duration = Duration::from_millis(100);

/// Reads the state that holds for every workspace, and the newest version of any slice.
pub(super) static EVERYONES: LazyLock<String> = LazyLock::new(|| {
    let newest = format!("SELECT toUInt8({NEWEST}), toUInt32(0), toInt64(max(version)), false FROM slices");
    format!("{} UNION ALL {} UNION ALL {newest}", sources(), slices(&[Uuid::nil()], u64::MAX))
});

/// The first offset of the entry for a partition that the topic no longer has.
const NO_LOG: u64 = u64::MAX;

impl Snapshot {
    /// Reads the state for a question.
    ///
    /// A later query finds at least the rows that this state promises: rows are stored before a slice is closed or a
    /// version becomes active, and [`super::replicas`] waits until a replica has them.
    pub(crate) async fn read(queries: &QueryPool, question: &Question<'_>) -> Result<Self> {
        let first_day = question.window.start.div_euclid(DAY);
        let of_slices = question.of.of_slices(question.workspace);
        let is_everyones = of_slices.iter().all(Uuid::is_nil);
        let read = async |sql: &str| {
            queries.query(sql).with_setting("max_threads", "1").fetch_all::<StateRow>().await
        };
        if queries.client.is_replicated() {
            let everyones = everyones(queries)?;
            let tables = queries.client.everywhere().await?;
            let of_rows =
                |rows: &[StateRow]| Self { tables, ..Self::of_rows(rows, first_day).before_as_of() };
            if is_everyones {
                return Ok(of_rows(&everyones));
            }
            // The replica has the rows of the versions up to then.
            let newest =
                everyones.iter().find(|row| row.of == NEWEST).map_or(0, |row| row.value.unsigned_abs());
            let mut rows = read(&slices(&of_slices, newest)).await?;
            rows.extend(everyones.iter().filter(|row| row.of != SLICE).cloned());
            return Ok(of_rows(&rows));
        }
        if is_everyones && let Some(rows) = queries.recent.last(RECENT) {
            return Ok(Self::of_rows(&rows, first_day));
        }
        let asked_at = Instant::now();
        // One statement of several reads: subqueries would run one after another.
        let sql = format!("{} UNION ALL {}", sources(), slices(&of_slices, u64::MAX));
        let rows: Arc<[StateRow]> = read(&sql).await?.into();
        if is_everyones {
            queries.recent.keep(asked_at, Arc::clone(&rows), Arc::default());
        }
        Ok(Self::of_rows(&rows, first_day))
    }

    /// Assembles the rows.
    pub(super) fn of_rows(rows: &[StateRow], first_day: i64) -> Self {
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
        Self { closed_until, versions, as_of, raw_until: None, tables: Everywhere::default() }
    }

    /// Limits raw rows to those that are certain to be there.
    fn before_as_of(self) -> Self {
        Self { raw_until: Some(self.as_of.map_or(0, |as_of| as_of.timestamp_millis())), ..self }
    }
}

/// Returns [`Snapshot::raw_until`], for a question that needs nothing else of the state.
///
/// # Errors
/// When no replica has all clicks.
pub(super) fn raw_until(queries: &QueryPool) -> Result<Option<i64>> {
    if !queries.client.is_replicated() {
        return Ok(None);
    }
    Ok(Snapshot::of_rows(&everyones(queries)?, 0).before_as_of().raw_until)
}

/// Returns the state of the replicas.
fn everyones(queries: &QueryPool) -> Result<Arc<[StateRow]>> {
    queries.recent.last(Duration::MAX).ok_or_else(no_state)
}

/// Returns the error while no replica has all rows.
pub(super) fn no_state() -> Error {
    Error::Custom("no replica of ClickHouse has all rows".to_owned())
}

/// Selects the state of sources and logs.
fn sources() -> String {
    format!(
        "SELECT toUInt8({SOURCE}) AS of, toUInt32(src) AS number, toUnixTimestamp64Milli(max(as_of)) AS value,
                false AS closes
         FROM progress GROUP BY src
         UNION ALL
         SELECT {LOG}, toUInt32(max(src)), toInt64(0), false
         FROM sources GROUP BY bitAnd(src, 65535) HAVING argMax(first_offset, src) < {NO_LOG}"
    )
}

/// Selects the versions of these workspaces' slices up to `newest`.
fn slices(workspaces: &[Uuid], newest: u64) -> String {
    let workspaces: Vec<String> = workspaces.iter().map(|id| format!("toUUID('{id}')")).collect();
    format!(
        "SELECT toUInt8({SLICE}) AS of, toUInt32(toUInt16(slice)) AS number, toInt64(max(version)) AS value,
                toBool(max(workspace_id = toUUID('{none}'))) AS closes
         FROM slices
         WHERE workspace_id IN ({workspaces}) AND version <= {newest}
         GROUP BY slice",
        workspaces = workspaces.join(", "),
        none = Uuid::nil(),
    )
}
