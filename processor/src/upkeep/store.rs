//! The statements of upkeep.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, NaiveDate};
use clickhouse::Row;
use clickhouse::error::Error;
use schemas::clickhouse::COUNTED;
use schemas::clickhouse::rollup::{DIMENSIONS, Run, Scope, last_day_of_month};
use schemas::id::WorkspaceId;
use schemas::row::UPKEEP;
use serde::Deserialize;
use service::clickhouse::Clickhouse;
use uuid::Uuid;

use crate::clickhouse::statements::{Statements, in_time};
use crate::clickhouse::{FencingToken, InsertError, StoreError, outcome_of};

/// Number of recently closed slices that are searched, like open ones, for clicks that came after their link's purge.
const RECENT_SLICES: u64 = 2;

/// Days rebuilt within this many days are searched as well: a rebuild may bring back rows of a link that was
/// purged shortly before.
const RECENT_REBUILD_DAYS: u64 = 2;

/// Days over which a workspace's largest window applies, so that a downgrade removes nothing at once.
const WINDOW_HISTORY_DAYS: u32 = 30;

/// Maximum links of one purge; keeps the statement well below `max_query_size`.
pub(super) const MAX_LINKS: usize = 1_000;

/// Maximum keys of one statement that deletes; keeps it below `max_query_size`.
const MAX_KEYS: usize = 1_000;

/// ClickHouse's code of `QUERY_WAS_CANCELLED`.
const CANCELLED: &str = "Code: 394.";

/// The click counts of a run's slices in three tables.
#[derive(Row, Deserialize)]
struct Compared {
    raw: u64,
    counted: u64,
    broken_down: Vec<u64>,
}

/// Which days of the broker are closed.
#[derive(Debug)]
pub(crate) struct Days {
    last_closed: Option<NaiveDate>,
    recent: BTreeSet<NaiveDate>,
}

impl Days {
    /// Returns whether a day was closed at least an hour ago, so that it gets no more clicks.
    pub(crate) fn are_settled(&self, day: &NaiveDate) -> bool {
        self.last_closed.is_some_and(|last| *day <= last) && !self.recent.contains(day)
    }
}

/// Access to the tables for upkeep.
#[derive(Debug, Clone)]
pub struct UpkeepStore {
    pub(super) statements: Statements,
}

impl UpkeepStore {
    /// Creates the access to the tables.
    pub fn new(client: Clickhouse) -> Self {
        // A run may write to any number of partitions.
        let client = client.with_setting("max_partitions_per_insert_block", "0");
        Self { statements: Statements::new(client) }
    }

    /// Returns one that stays with the replica that is used now.
    pub(super) fn pinned(&self) -> Self {
        Self { statements: Statements { client: self.statements.client.pinned() } }
    }

    /// Waits until the replica that is used of each shard has all clicks and what decides which of them count.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        for shard in self.statements.client.each_shard().await? {
            shard.catch_up(&Self::all()).await?;
        }
        Ok(())
    }

    /// Changes to replicas that have all of that, if the present ones do not get it.
    pub(crate) async fn choose_complete(&self) -> Result<(), StoreError> {
        for shard in self.statements.client.each_shard().await? {
            shard.choose_complete(&Self::all()).await?;
        }
        Ok(())
    }

    /// As the API does: upkeep does not remove what a state names that cannot be replaced by a newer one.
    fn all() -> Vec<&'static str> {
        [&COUNTED[..], &["owners"]].concat()
    }

    /// Runs a guarded insert under an epoch, into the tables of the shard that the statements are for.
    pub(super) async fn insert(statements: &Statements, sql: &str, epoch: u64) -> Result<(), InsertError> {
        let id = FencingToken { src: UPKEEP, epoch }.statement_id();
        let insert = statements.query(sql).with_setting("query_id", id);
        let outcome = in_time(insert.with_setting("wait_end_of_query", "1").execute()).await;
        match outcome_of(outcome) {
            // A takeover kills running statements. Their rows are not active, so whether it finished does not matter.
            Err(InsertError::InDoubt(StoreError::Clickhouse(Error::BadResponse(text))))
                if text.starts_with(CANCELLED) =>
            {
                Err(InsertError::Fenced)
            }
            outcome => outcome,
        }
    }

    /// Deletes rows and returns how many; [`UpkeepStore::erase`] removes them from the disk.
    ///
    /// This is a lightweight delete: rewriting parts of many gigabytes for each purge would cost too much.
    pub(super) async fn delete(&self, table: &str, condition: &str) -> Result<u64, StoreError> {
        let mut deleted = 0;
        for shard in self.statements.each_shard().await? {
            let count = format!("SELECT count() FROM {table} WHERE {condition}");
            let rows: u64 = shard.fetch_one(&count).await?;
            if rows > 0 {
                shard.execute(&format!("DELETE FROM {table} WHERE {condition}")).await?;
            }
            deleted += rows;
        }
        Ok(deleted)
    }

    /// Deletes the rows whose key a row has for which the condition holds, and returns how many.
    ///
    /// Of a condition with subqueries: replicas delete each for itself, and must not decide by what each knows then.
    pub(super) async fn delete_by(&self, table: &str, key: &str, condition: &str) -> Result<u64, StoreError> {
        if !self.statements.client.is_replicated() {
            return self.delete(table, condition).await;
        }
        let found = format!("SELECT DISTINCT toString(tuple({key})) FROM {table} WHERE {condition}");
        let mut keys: BTreeSet<String> = BTreeSet::new();
        for shard in self.statements.each_shard().await? {
            keys.extend(shard.fetch_all::<String>(&found).await?);
        }
        let (keys, mut rows): (Vec<String>, u64) = (keys.into_iter().collect(), 0);
        for keys in keys.chunks(MAX_KEYS) {
            rows += self.delete(table, &format!("tuple({key}) IN ({})", keys.join(", "))).await?;
        }
        Ok(rows)
    }

    /// Deletes raw clicks that are there now and returns how many; the sources that end with them keep their positions.
    ///
    /// Clicks that are stored meanwhile stay: a processor may not know of a deleted link yet, and their positions are
    /// not kept.
    pub(super) async fn delete_clicks(&self, condition: &str) -> Result<u64, StoreError> {
        let clicks = self.clicks().await?;
        let last = format!("SELECT src, max(koff) FROM {clicks} WHERE {condition} GROUP BY src");
        let last: Vec<(u32, u64)> = self.statements.fetch_all(&last).await?;
        if last.is_empty() {
            return Ok(0);
        }
        let until: Vec<String> =
            last.iter().map(|(src, koff)| format!("src = {src} AND koff <= {koff}")).collect();
        let condition = format!("{condition} AND ({})", until.join(" OR "));
        self.keep_positions(&condition).await?;
        self.delete("clicks", &condition).await
    }

    /// Stores the positions of sources whose last raw clicks are about to be removed, so that they continue after them.
    pub(crate) async fn keep_positions(&self, condition: &str) -> Result<(), StoreError> {
        let sql = format!(
            "INSERT INTO stretches (src, first, next, broker_ts, rows_end) \
             SELECT src, if(countIf(stays) = 0, 0, maxIf(koff, stays) + 1), max(koff) + 1 AS end, \
                    argMax(broker_ts, koff), end \
             FROM (SELECT src, koff, broker_ts, NOT ({condition}) AS stays FROM clicks \
                   WHERE src IN (SELECT src FROM clicks WHERE {condition})) \
             GROUP BY src HAVING NOT argMax(stays, koff)"
        );
        self.execute_on_each_shard(&sql).await
    }

    async fn execute_on_each_shard(&self, sql: &str) -> Result<(), StoreError> {
        for shard in self.statements.each_shard().await? {
            shard.execute(sql).await?;
        }
        Ok(())
    }

    /// Returns the expression for the clicks of all shards.
    async fn clicks(&self) -> Result<String, StoreError> {
        Ok(self.statements.client.everywhere().await?.of("clicks"))
    }

    /// Removes a table's deleted rows from the disk.
    pub(super) async fn erase(&self, table: &str) -> Result<(), StoreError> {
        let masked = format!(
            "SELECT count() FROM system.parts WHERE database = currentDatabase() AND table = '{table}' AND active \
             AND has_lightweight_delete"
        );
        for shard in self.statements.each_shard().await? {
            let masked: u64 = shard.fetch_one(&masked).await?;
            if masked > 0 {
                tracing::info!(
                    table,
                    parts = masked,
                    "rewriting {masked} parts of {table} without their deleted rows"
                );
                shard.execute(&format!("ALTER TABLE {table} APPLY DELETED MASK")).await?;
            }
        }
        Ok(())
    }

    /// Returns the version that was activated last.
    pub(super) async fn newest_version(&self) -> Result<Option<u64>, StoreError> {
        self.statements.fetch_one("SELECT maxOrNull(version) FROM slices").await
    }

    /// Returns the last closed slice.
    pub(crate) async fn last_closed_slice(&self) -> Result<Option<NaiveDate>, StoreError> {
        let zero = Uuid::nil();
        self.day(&format!(
            "SELECT toString(maxOrNull(slice)) FROM slices WHERE workspace_id = toUUID('{zero}')"
        ))
        .await
    }

    /// Returns the slice after the last closed one, or else the first one that has rows.
    pub(super) async fn first_open_slice(&self) -> Result<Option<NaiveDate>, StoreError> {
        match self.last_closed_slice().await? {
            Some(last) => Ok(last.succ_opt()),
            None => {
                let first =
                    format!("SELECT toString(minOrNull(toDate(broker_ts))) FROM {}", self.clicks().await?);
                self.day(&first).await
            }
        }
    }

    /// Returns the first slice with rows after another slice.
    pub(super) async fn slice_with_rows_after(
        &self,
        slice: NaiveDate,
    ) -> Result<Option<NaiveDate>, StoreError> {
        self.day(&format!(
            "SELECT toString(minOrNull(toDate(broker_ts))) FROM {} WHERE toDate(broker_ts) > '{slice}'",
            self.clicks().await?
        ))
        .await
    }

    /// Returns which days are closed, and which of them were closed recently.
    pub(crate) async fn days(&self) -> Result<Days, StoreError> {
        let zero = Uuid::nil();
        let recent = format!(
            "SELECT toString(slice) FROM slices WHERE workspace_id = toUUID('{zero}') GROUP BY slice \
             HAVING min(slices.at) > now64(3) - INTERVAL 1 HOUR"
        );
        let last_closed = self.last_closed_slice().await?;
        Ok(Days { last_closed, recent: self.days_of(&recent).await? })
    }

    /// Returns the days with raw rows for which a condition holds.
    pub(crate) async fn days_with(&self, condition: &str) -> Result<BTreeSet<NaiveDate>, StoreError> {
        let clicks = self.clicks().await?;
        self.days_of(&format!("SELECT DISTINCT toString(toDate(broker_ts)) FROM {clicks} WHERE {condition}"))
            .await
    }

    async fn days_of(&self, sql: &str) -> Result<BTreeSet<NaiveDate>, StoreError> {
        let days: Vec<String> = self.statements.fetch_all(sql).await?;
        Ok(days.iter().filter_map(|day| day.parse().ok()).collect())
    }

    async fn day(&self, sql: &str) -> Result<Option<NaiveDate>, StoreError> {
        let day: Option<String> = self.statements.fetch_one(sql).await?;
        Ok(day.and_then(|day| day.parse().ok()))
    }

    /// Returns the number of the last block of clicks of each day that has any. Each insert and each replacement of
    /// rows gets a higher number. Those of several shards are added up.
    pub async fn last_blocks(&self) -> Result<BTreeMap<NaiveDate, i64>, StoreError> {
        const SQL: &str = "SELECT partition, max(max_block_number) FROM system.parts \
                           WHERE database = currentDatabase() AND table = 'clicks' AND active GROUP BY partition";
        let mut all = BTreeMap::new();
        for shard in self.statements.each_shard().await? {
            for (day, block) in blocks(&shard, SQL).await? {
                // Also the first block of another shard, 0, makes it higher.
                all.entry(day).and_modify(|sum| *sum += block + 1).or_insert(block);
            }
        }
        Ok(all)
    }

    /// Returns the closed slices whose last block of clicks has changed since they were closed.
    pub(super) async fn changed_slices(&self) -> Result<BTreeSet<NaiveDate>, StoreError> {
        let zero = Uuid::nil();
        let closed = format!(
            "SELECT toString(slice), argMax(last_block, version) FROM slices WHERE workspace_id = toUUID('{zero}') \
             GROUP BY slice"
        );
        let (closed, blocks) = (blocks(&self.statements, &closed).await?, self.last_blocks().await?);
        // A day without blocks was removed by retention.
        let has_changed = |slice: &NaiveDate, closed| blocks.get(slice).is_some_and(|block| *block != closed);
        Ok(closed
            .into_iter()
            .filter(|(slice, closed)| has_changed(slice, *closed))
            .map(|(slice, _)| slice)
            .collect())
    }

    /// Compares the raw rows of a run's slices with the rollups computed on the same shard; describes the difference,
    /// if any.
    pub(super) async fn difference(shard: &Statements, run: &Run) -> Result<Option<String>, StoreError> {
        let zero = Uuid::nil();
        let days: Vec<String> = run.slices.keys().map(|slice| format!("'{slice}'")).collect();
        let days = days.join(", ");
        // In `counts`, the rows of links and those of workspaces have the same clicks: only one kind is summed.
        let (own, hours, breakdowns) = match run.scope {
            Scope::All => ("1".to_owned(), format!("link_id != toUUID('{zero}')"), 2 * DIMENSIONS.len()),
            Scope::Workspace(id) => {
                let own = format!("workspace_id = toUUID('{}')", id.uuid());
                (own.clone(), format!("{own} AND link_id = toUUID('{zero}')"), DIMENSIONS.len())
            }
        };
        let version = run.version;
        let sql = format!(
            "SELECT assumeNotNull((SELECT count() FROM clicks WHERE toDate(broker_ts) IN ({days}) AND {own} \
                     AND link_id NOT IN (SELECT link_id FROM deleted_links))) AS raw, \
                    assumeNotNull((SELECT sum(clicks) FROM counts WHERE slice IN ({days}) AND {hours} \
                     AND version = {version} AND unit = 'hour')) AS counted, \
                    (SELECT groupArray(clicks) FROM (SELECT sum(clicks) AS clicks FROM breakdowns \
                     WHERE slice IN ({days}) AND {own} AND version = {version} AND unit = 'day' \
                     GROUP BY dimension, link_id = toUUID('{zero}'))) AS broken_down"
        );
        let Compared { raw, counted, broken_down } = shard.fetch_one(&sql).await?;
        let expected = if raw == 0 { 0 } else { breakdowns };
        let equal = raw == counted
            && broken_down.len() == expected
            && broken_down.iter().all(|clicks| *clicks == raw);
        Ok((!equal).then(|| format!("{raw} raw, {counted} by hour, {broken_down:?} by dimension")))
    }

    /// Returns deleted links that were not purged yet, or that have rows again.
    pub(super) async fn links_to_purge(&self) -> Result<Vec<Uuid>, StoreError> {
        let last_closed = self.last_closed_slice().await?;
        let recent = last_closed.and_then(|last| last.checked_sub_days(chrono::Days::new(RECENT_SLICES)));
        let sql = format!(
            "SELECT DISTINCT toString(link_id) FROM \
             (SELECT link_id FROM deleted_links \
              WHERE link_id NOT IN (SELECT link_id FROM purges) LIMIT {MAX_LINKS} \
              UNION ALL SELECT link_id FROM {clicks} \
              WHERE (toDate(broker_ts) >= '{recent}' \
                     OR toDate(broker_ts) IN (SELECT day FROM rebuilds WHERE at > now() - INTERVAL \
                {RECENT_REBUILD_DAYS} DAY)) AND link_id IN (SELECT link_id FROM deleted_links) LIMIT 1 BY link_id \
              UNION ALL SELECT link_id FROM conversions \
              WHERE link_id IN (SELECT link_id FROM deleted_links) LIMIT 1 BY link_id \
              UNION ALL SELECT link_id FROM waiting_conversions \
              WHERE link_id IN (SELECT link_id FROM deleted_links) LIMIT 1 BY link_id) LIMIT {MAX_LINKS}",
            clicks = self.clicks().await?,
            recent = recent.unwrap_or(DateTime::UNIX_EPOCH.date_naive()),
        );
        let links: Vec<String> = self.statements.fetch_all(&sql).await?;
        Ok(links.iter().filter_map(|link| link.parse().ok()).collect())
    }

    /// Returns the closed slices whose rollups have clicks of these links, by workspace.
    pub(super) async fn slices_of_links(
        &self,
        links: &[Uuid],
    ) -> Result<BTreeMap<WorkspaceId, BTreeSet<NaiveDate>>, StoreError> {
        let sql = format!(
            "SELECT toString(workspace_id), toString(toDate(broker_ts) AS slice), toString(toDate(occurred_at) AS day) \
             FROM {} WHERE link_id IN ({}) GROUP BY workspace_id, slice, day",
            self.clicks().await?,
            list(links),
        );
        let rows: Vec<(String, String, String)> = self.statements.fetch_all(&sql).await?;
        let closed = self.last_closed_slice().await?;
        let mut touched: BTreeMap<WorkspaceId, BTreeSet<NaiveDate>> = BTreeMap::new();
        for (workspace, slice, day) in &rows {
            let (Ok(workspace), Ok(slice), Ok(day)) =
                (workspace.parse(), slice.parse::<NaiveDate>(), day.parse::<NaiveDate>())
            else {
                continue;
            };
            // A click counts in its own slice and in the month's last one, if the month was over and the click not
            // late.
            for slice in [slice, last_day_of_month(day)] {
                if closed.is_some_and(|closed| slice <= closed) {
                    touched.entry(WorkspaceId::from_uuid(workspace)).or_default().insert(slice);
                }
            }
        }
        Ok(touched)
    }

    pub(super) async fn insert_purges(&self, links: &[Uuid]) -> Result<(), StoreError> {
        let values: Vec<String> = links.iter().map(|link| format!("('{link}', now64(3))")).collect();
        let sql = format!("INSERT INTO purges (link_id, at) VALUES {}", values.join(", "));
        self.statements.execute(&sql).await
    }

    /// Returns the workspaces by the largest window, in days, that each had recently.
    pub(crate) async fn windows(&self) -> Result<BTreeMap<u32, Vec<Uuid>>, StoreError> {
        let sql = format!(
            "SELECT toString(workspace_id), max(days) FROM retention \
             WHERE at >= now() - INTERVAL {WINDOW_HISTORY_DAYS} DAY GROUP BY workspace_id"
        );
        let rows: Vec<(String, u32)> = self.statements.fetch_all(&sql).await?;
        let mut windows: BTreeMap<u32, Vec<Uuid>> = BTreeMap::new();
        for (workspace, days) in rows {
            windows.entry(days).or_default().extend(workspace.parse::<Uuid>());
        }
        Ok(windows)
    }

    /// Returns the names of the partitions, which are days, before a day.
    pub(super) async fn partitions_before(
        &self,
        table: &str,
        day: NaiveDate,
    ) -> Result<BTreeSet<String>, StoreError> {
        let sql = format!(
            "SELECT DISTINCT partition FROM system.parts WHERE database = currentDatabase() AND active \
             AND table = '{table}' AND partition < '{day}'"
        );
        let mut partitions: BTreeSet<String> = BTreeSet::new();
        for shard in self.statements.each_shard().await? {
            partitions.extend(shard.fetch_all::<String>(&sql).await?);
        }
        Ok(partitions)
    }

    pub(super) async fn drop_partition(&self, table: &str, partition: &str) -> Result<(), StoreError> {
        self.execute_on_each_shard(&format!("ALTER TABLE {table} DROP PARTITION '{partition}'")).await
    }
}

async fn blocks(statements: &Statements, sql: &str) -> Result<BTreeMap<NaiveDate, i64>, StoreError> {
    let rows: Vec<(String, i64)> = statements.fetch_all(sql).await?;
    Ok(rows.into_iter().filter_map(|(day, block)| Some((day.parse().ok()?, block))).collect())
}

/// Returns links as a list of SQL.
pub(super) fn list(links: &[Uuid]) -> String {
    links.iter().map(|link| format!("toUUID('{link}')")).collect::<Vec<_>>().join(", ")
}
