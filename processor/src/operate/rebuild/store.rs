//! The statements of a rebuild.

use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, Utc};
use clickhouse::Client;
use schemas::clickhouse::Generation;
use schemas::clickhouse::rollup::in_force;
use schemas::referrer::WITHOUT_WWW;
use uuid::Uuid;

use super::RebuildError;
use super::plan::{Plan, Step, Written};
use crate::store::{Right, StoreError, outcome_of, within};

/// How long ClickHouse may take for one statement.
const TIMEOUT: Duration = Duration::from_secs(3_600);

/// Access to the tables.
#[derive(Clone)]
pub(super) struct Tables {
    client: Client,
}

impl Tables {
    pub(super) fn new(client: Client) -> Self {
        let client = client
            .with_setting("async_insert", "0")
            .with_setting("wait_end_of_query", "1")
            .with_setting("max_threads", "2")
            .with_setting("max_insert_threads", "1")
            .with_setting("max_partitions_per_insert_block", "0")
            .with_setting("mutations_sync", "1")
            .with_setting("lightweight_deletes_sync", "1")
            .with_setting("max_execution_time", "3600");
        Self { client }
    }

    /// Returns the latest rebuild.
    pub(super) async fn latest(&self) -> Result<Option<Written>, RebuildError> {
        let sql = "SELECT toString(argMax(step, rebuilds.at)), argMax(plan, rebuilds.at), \
                   toFloat64(now64(3)) - toFloat64(max(rebuilds.at)) \
                   FROM rebuilds GROUP BY generation ORDER BY generation DESC LIMIT 1";
        let row: Option<(String, String, f64)> = self.in_time(self.query(sql).fetch_optional()).await?;
        let Some((step, plan, idle_seconds)) = row else { return Ok(None) };
        let step = Step::named(&step).ok_or_else(|| RebuildError::Unreadable(step.clone()))?;
        let plan =
            serde_json::from_str(&plan).map_err(|error| RebuildError::Unreadable(error.to_string()))?;
        Ok(Some(Written { plan, step, idle_seconds }))
    }

    /// Writes a step down, as done; the same again says that somebody is at work.
    pub(super) async fn write(&self, right: Right, plan: &Plan, step: Step) -> Result<(), RebuildError> {
        let text =
            serde_json::to_string(plan).map_err(|error| RebuildError::Unreadable(error.to_string()))?;
        let text = text.replace('\\', "\\\\").replace('\'', "\\'");
        let (generation, step) = (plan.generation, step.name());
        self.insert(right, &format!("INSERT INTO rebuilds SELECT {generation}, '{step}', '{text}', now64(3)"))
            .await
    }

    /// Makes the tables of a generation.
    pub(super) async fn create(&self, generation: Generation) -> Result<(), StoreError> {
        for statement in generation.statements() {
            self.execute(&statement).await?;
        }
        Ok(())
    }

    /// Removes the clicks of a generation.
    pub(super) async fn clear(&self, right: Right, generation: Generation) -> Result<(), RebuildError> {
        self.check(right).await?;
        Ok(self.execute(&format!("TRUNCATE TABLE {}", generation.clicks())).await?)
    }

    /// Removes the tables of a generation.
    pub(super) async fn drop(&self, generation: Generation) -> Result<(), StoreError> {
        for table in [generation.slices(), generation.counts(), generation.breakdowns(), generation.clicks()]
        {
            self.execute(&format!("DROP TABLE IF EXISTS {table} SYNC")).await?;
        }
        Ok(())
    }

    /// Returns whether a generation has tables.
    pub(super) async fn exists(&self, generation: Generation) -> Result<bool, StoreError> {
        let sql = format!("EXISTS TABLE {}", generation.clicks());
        Ok(self.in_time(self.query(&sql).fetch_one::<u8>()).await? == 1)
    }

    /// Returns the days that have rows.
    pub(super) async fn days(
        &self,
        clicks: &str,
        condition: &str,
    ) -> Result<BTreeSet<NaiveDate>, StoreError> {
        let sql = format!("SELECT DISTINCT toString(toDate(broker_ts)) FROM {clicks} WHERE {condition}");
        let days: Vec<String> = self.in_time(self.query(&sql).fetch_all()).await?;
        Ok(days.iter().filter_map(|day| day.parse().ok()).collect())
    }

    /// Says of links whose rows are gone that they are gone from the new tables, too.
    pub(super) async fn copy_purges(&self, right: Right, plan: &Plan) -> Result<(), RebuildError> {
        let Plan { generation, of, .. } = plan;
        let sql = format!(
            "INSERT INTO purges (generation, link_id, at) SELECT {generation}, link_id, at FROM purges \
             WHERE generation = {of}"
        );
        self.insert(right, &sql).await
    }

    /// Takes over a day's rows: the parts are shared on the disk.
    pub(super) async fn attach(&self, right: Right, plan: &Plan, day: NaiveDate) -> Result<(), RebuildError> {
        // A statement of this kind takes no condition; whoever has lost the right is told here.
        self.check(right).await?;
        let (new, old) = (plan.generation().clicks(), plan.of().clicks());
        Ok(self.execute(&format!("ALTER TABLE {new} REPLACE PARTITION '{day}' FROM {old}")).await?)
    }

    /// Copies the rows of a day that are not read again.
    pub(super) async fn copy(&self, right: Right, plan: &Plan, day: NaiveDate) -> Result<(), RebuildError> {
        let (new, old) = (plan.generation().clicks(), plan.of().clicks());
        let condition = plan.is_copied();
        let rows = format!("SELECT * FROM {old} WHERE toDate(broker_ts) = '{day}' AND {condition}");
        let sql = match plan.recount {
            None => format!("INSERT INTO {new} {rows}"),
            Some(recount) => format!("INSERT INTO {new} {}", recounted(&rows, recount, plan.live.keys())),
        };
        self.insert(right, &sql).await
    }

    /// Returns the offset behind the last row of a range.
    pub(super) async fn filled(
        &self,
        clicks: &str,
        src: u32,
        from: u64,
        to: u64,
    ) -> Result<Option<u64>, StoreError> {
        let sql = format!(
            "SELECT maxOrNull(koff) + 1 FROM {clicks} WHERE src = {src} AND koff >= {from} AND koff < {to}"
        );
        self.in_time(self.query(&sql).fetch_one()).await
    }

    /// Returns the marked clicks of a source below an offset, the oldest first; also those of former logs of its
    /// partition, because a first copy may have been on its way when the log was replaced.
    pub(super) async fn marked_before(
        &self,
        clicks: &str,
        src: u32,
        offset: u64,
        limit: usize,
    ) -> Result<Vec<(String, DateTime<Utc>)>, StoreError> {
        let sql = format!(
            "SELECT click_id, toUnixTimestamp64Milli(broker_ts) FROM {clicks} \
             WHERE bitAnd(src, 65535) = bitAnd({src}, 65535) AND (src, koff) < ({src}, {offset}) AND again \
             ORDER BY src DESC, koff DESC LIMIT {limit}"
        );
        let rows: Vec<(String, i64)> = self.in_time(self.query(&sql).fetch_all()).await?;
        let times = rows.into_iter().rev();
        Ok(times.filter_map(|(id, millis)| Some((id, DateTime::from_timestamp_millis(millis)?))).collect())
    }

    /// Takes over the rollups of closed slices that are not computed again.
    pub(super) async fn copy_rollups(&self, right: Right, plan: &Plan) -> Result<(), RebuildError> {
        let (new, old) = (plan.generation(), plan.of());
        self.check(right).await?;
        for table in [new.counts(), new.breakdowns(), new.slices()] {
            self.execute(&format!("TRUNCATE TABLE {table}")).await?;
        }
        let Some(until) = plan.closed_until else { return Ok(()) };
        let again: Vec<String> = plan.slices.iter().map(|slice| format!("'{slice}'")).collect();
        let again = again.join(", ");
        let kept = format!("slice < '{until}' AND NOT has(CAST([{again}], 'Array(Date)'), slice)");
        // The versions first, then the rows of just those: a purge may replace some meanwhile.
        let sql = format!("INSERT INTO {} SELECT * FROM {} WHERE {kept}", new.slices(), old.slices());
        self.insert(right, &sql).await?;
        let in_force = in_force(new);
        for (new, old) in [(new.counts(), old.counts()), (new.breakdowns(), old.breakdowns())] {
            let sql = format!("INSERT INTO {new} SELECT * FROM {old} WHERE {kept} AND {in_force}");
            self.insert(right, &sql).await?;
        }
        Ok(())
    }

    /// Returns the ids of marked clicks of a source outside of a range: they were taken over as they are.
    pub(super) async fn kept_marked(
        &self,
        clicks: &str,
        src: u32,
        from: u64,
        to: u64,
    ) -> Result<HashSet<String>, StoreError> {
        let sql = format!(
            "SELECT click_id FROM {clicks} WHERE src = {src} AND again AND NOT (koff >= {from} AND koff < {to})"
        );
        Ok(self.in_time(self.query(&sql).fetch_all()).await?.into_iter().collect())
    }

    /// Copies the rows of a live source that came since, and returns how many there were.
    ///
    /// A lane finds a repeat among the tables that it writes into. So it takes a marked copy in whose first one they
    /// have lost, and which the log has brought back into the new tables: such a row is left out.
    pub(super) async fn copy_live(
        &self,
        right: Right,
        plan: &Plan,
        src: u32,
        from: u64,
    ) -> Result<u64, RebuildError> {
        let (new, old) = (plan.generation().clicks(), plan.of().clicks());
        let missing = format!(
            "FROM {old} WHERE src = {src} AND koff >= {from} \
             AND koff NOT IN (SELECT koff FROM {new} WHERE src = {src} AND koff >= {from}) \
             AND click_id NOT IN (SELECT click_id FROM {new} WHERE src = {src} AND again) \
             AND NOT (again AND click_id IN (SELECT click_id FROM {new} WHERE (workspace_id, link_id) IN \
             (SELECT workspace_id, link_id FROM {old} WHERE src = {src} AND koff >= {from} AND again))) \
             AND link_id NOT IN (SELECT link_id FROM deleted_links)"
        );
        let rows: u64 = self.in_time(self.query(&format!("SELECT count() {missing}")).fetch_one()).await?;
        if rows > 0 {
            self.insert(right, &format!("INSERT INTO {new} SELECT * {missing}")).await?;
        }
        Ok(rows)
    }

    /// Makes a generation the current one, if every right still holds: one's own and those of live sources.
    pub(super) async fn switch(&self, right: Right, live: &[Right], plan: &Plan) -> Result<(), RebuildError> {
        let guards: Vec<String> = live.iter().chain([&right]).map(|right| right.guard()).collect();
        let (generation, reason) = (plan.generation, plan.reason());
        let sql = format!(
            "INSERT INTO generations (generation, at, reason) \
             SELECT {generation}, now64(3), '{reason}' WHERE {}",
            guards.join(" AND ")
        );
        self.guarded(&sql, Some(right.statement_id())).await
    }

    /// Asks whether a right still holds.
    pub(super) async fn check(&self, right: Right) -> Result<(), RebuildError> {
        self.guarded(&format!("SELECT 1 WHERE {}", right.guard()), None).await
    }

    /// Runs an insert, whose last condition is open to one more, under a right.
    async fn insert(&self, right: Right, sql: &str) -> Result<(), RebuildError> {
        let joint = if sql.contains(" WHERE ") { "AND" } else { "WHERE" };
        self.guarded(&format!("{sql} {joint} {}", right.guard()), Some(right.statement_id())).await
    }

    async fn guarded(&self, sql: &str, query_id: Option<String>) -> Result<(), RebuildError> {
        let mut query = self.query(sql);
        if let Some(id) = query_id {
            query = query.with_setting("query_id", id);
        }
        Ok(outcome_of(self.in_time(query.execute()).await)?)
    }

    async fn execute(&self, sql: &str) -> Result<(), StoreError> {
        self.in_time(self.query(sql).execute()).await
    }

    /// Prepares a statement of ours, which has no placeholders.
    fn query(&self, sql: &str) -> clickhouse::query::Query {
        self.client.query(&sql.replace('?', "??"))
    }

    async fn in_time<T>(
        &self,
        statement: impl Future<Output = Result<T, clickhouse::error::Error>>,
    ) -> Result<T, StoreError> {
        within(TIMEOUT, statement).await
    }
}

/// Changes rows of some sources by what a recount has read of their User-Agents and purposes, and all referrers.
fn recounted<'a>(rows: &str, recount: Uuid, sources: impl Iterator<Item = &'a u32>) -> String {
    let sources: Vec<String> = sources.map(u32::to_string).collect();
    let is_read = format!("reading.known AND click.src IN ({})", sources.join(", "));
    let columns = ["class", "device_type", "browser", "os"];
    let columns =
        columns.map(|name| format!("if({is_read}, reading.{name}, click.{name}) AS {name}")).join(", ");
    format!(
        "SELECT click.* REPLACE ({columns}) FROM (SELECT * REPLACE ({WITHOUT_WWW} AS referrer) FROM ({rows})) AS click \
         LEFT ANY JOIN (SELECT user_agent, purpose, class, device_type, browser, os, toUInt8(1) AS known \
                        FROM recounts WHERE recount = toUUID('{recount}')) AS reading \
         ON click.user_agent = reading.user_agent AND toString(click.purpose) = reading.purpose WHERE 1"
    )
}
