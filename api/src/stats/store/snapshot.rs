//! The state of the tables that a query goes by.

use chrono::{DateTime, Utc};
use clickhouse::Row;
use clickhouse::error::Result;
use schemas::clickhouse::Generation;
use serde::Deserialize;

use super::desk::Desk;
use super::source::Question;

/// Milliseconds of a day.
pub(super) const DAY: i64 = 86_400_000;

/// Which tables are current, how far the rollups reach, and up to when every click is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(super) generation: Generation,
    /// The first day of the broker that the rollups do not have, in days since 1970; 0 when they have none.
    pub(super) closed_until: u16,
    /// The version in force of each closed slice, from the first day that is asked about on, ascending.
    pub(super) versions: Vec<(u16, u64)>,
    /// Every click that the broker had taken by then is in the tables; not known before the first processor ran.
    pub(crate) as_of: Option<DateTime<Utc>>,
}

#[derive(Row, Deserialize)]
struct SnapshotRow {
    generation: u32,
    sources: u64,
    as_of_millis: i64,
    closed_until: u16,
    slices: Vec<u16>,
    versions: Vec<u64>,
}

impl Snapshot {
    /// Reads the state for a question.
    ///
    /// A query that follows finds at least the rows that this state promises: a slice is closed, and a version comes
    /// into force, after its rows are stored.
    pub(crate) async fn read(desk: &Desk, question: &Question<'_>) -> Result<Self> {
        let mut generation = desk.generation().await?;
        loop {
            match Self::of_generation(desk, generation, question).await {
                Ok((snapshot, current)) if current == generation => {
                    desk.remember(Some(generation));
                    return Ok(snapshot);
                }
                Ok((_, current)) => generation = current,
                Err(error) => {
                    // Perhaps because the tables of a former generation are gone.
                    desk.remember(None);
                    let current = desk.generation().await?;
                    if current == generation {
                        return Err(error);
                    }
                    generation = current;
                }
            }
        }
    }

    /// The state by the slices of one generation, and which generation is current.
    async fn of_generation(
        desk: &Desk,
        generation: Generation,
        question: &Question<'_>,
    ) -> Result<(Self, Generation)> {
        let of_slices = question.of.of_slices(question.workspace);
        let of_slices: Vec<String> = of_slices.iter().map(|id| format!("toUUID('{id}')")).collect();
        // No click was taken by the broker before it happened, so earlier slices have none of the asked ones. The
        // sources of a former generation of topics have nothing to come.
        let sql = format!(
            "SELECT assumeNotNull((SELECT max(generation) FROM generations)) AS generation,
                    assumeNotNull((SELECT count() FROM progress)) AS sources,
                    assumeNotNull((
                        SELECT toUnixTimestamp64Milli(min(source.as_of))
                        FROM (SELECT src, max(as_of) AS as_of FROM progress GROUP BY src) AS source
                        WHERE bitShiftRight(src, 16) = (SELECT max(bitShiftRight(src, 16)) FROM progress)
                    )) AS as_of_millis,
                    if(countIf(closes) = 0, 0, toUInt16(maxIf(day, closes) + 1)) AS closed_until,
                    groupArrayIf(day, day >= {first}) AS slices,
                    groupArrayIf(version, day >= {first}) AS versions
             FROM (
                 SELECT toUInt16(slice) AS day, max(version) AS version, max(workspace_id = {none}) AS closes
                 FROM {table}
                 WHERE workspace_id IN ({workspaces})
                 GROUP BY slice
                 ORDER BY day
             )",
            first = question.window.start.div_euclid(DAY),
            workspaces = of_slices.join(", "),
            none = "toUUID('00000000-0000-0000-0000-000000000000')",
            table = generation.slices(),
        );
        let row: SnapshotRow = desk.query(&sql).fetch_one().await?;
        let versions = std::iter::zip(row.slices, row.versions);
        let snapshot = Self {
            generation,
            closed_until: row.closed_until,
            versions: versions.filter(|(slice, _)| *slice < row.closed_until).collect(),
            as_of: (row.sources > 0).then(|| DateTime::from_timestamp_millis(row.as_of_millis)).flatten(),
        };
        Ok((snapshot, Generation(row.generation)))
    }
}
