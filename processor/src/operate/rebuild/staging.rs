//! The statements of a rebuild.

use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, Utc};
use clickhouse::{Client, Row};
use schemas::referrer::WITHOUT_WWW;
use serde::Deserialize;
use uuid::Uuid;

use super::{Range, RebuildError};
use crate::store::{StoreError, within};

/// How long ClickHouse may take for one statement.
const TIMEOUT: Duration = Duration::from_secs(3_600);

/// Memory at which grouping goes on on the disk.
const MEMORY: &str = "268435456";

/// What the names of staging tables begin with.
const PREFIX: &str = "clicks_staging_";

/// The clicks of a day, in one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Row, Deserialize)]
pub(super) struct Content {
    pub(super) rows: u64,
    /// The sum of the hashes of all rows.
    hash: u64,
}

/// The staging table of one attempt, and the tables around it.
pub(super) struct Staging {
    client: Client,
    table: String,
}

impl Staging {
    /// Makes a staging table, and removes those of others: who was at work on one does nothing any more.
    pub(super) async fn new(client: Client) -> Result<Self, StoreError> {
        let client = client
            .with_setting("async_insert", "0")
            .with_setting("wait_end_of_query", "1")
            .with_setting("max_threads", "2")
            .with_setting("max_insert_threads", "1")
            .with_setting("max_bytes_before_external_group_by", MEMORY)
            .with_setting("mutations_sync", "1")
            .with_setting("lightweight_deletes_sync", "1")
            .with_setting("max_execution_time", TIMEOUT.as_secs().to_string());
        let staging = Self { client, table: format!("{PREFIX}{}", Uuid::now_v7().simple()) };
        let others = format!(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND startsWith(name, '{PREFIX}')"
        );
        let others: Vec<String> = staging.in_time(staging.query(&others).fetch_all()).await?;
        for table in others {
            tracing::warn!("removing {table}, which another replay or recount has left, or still works on");
            staging.execute(&format!("DROP TABLE IF EXISTS {table} SYNC")).await?;
        }
        staging.execute(&format!("CREATE TABLE {} AS clicks", staging.table)).await?;
        Ok(staging)
    }

    /// Returns the table's name.
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// Removes the table.
    pub(super) async fn drop(&self) -> Result<(), StoreError> {
        self.execute(&format!("DROP TABLE IF EXISTS {} SYNC", self.table)).await
    }

    /// Puts the rows of a day into the table that are not of these ranges, changed by a recount; nothing else is in it
    /// then.
    pub(super) async fn keep(
        &self,
        day: NaiveDate,
        ranges: &[Range],
        recount: Option<Uuid>,
    ) -> Result<(), StoreError> {
        let mut rows = format!("SELECT * FROM clicks WHERE toDate(broker_ts) = '{day}' AND {NOT_DELETED}");
        for Range { src, from, to, .. } in ranges {
            rows += &format!(" AND NOT (src = {src} AND koff >= {from} AND koff < {to})");
        }
        if let Some(recount) = recount {
            rows = recounted(&rows, recount);
        }
        self.execute(&format!("TRUNCATE TABLE {}", self.table)).await?;
        self.execute(&format!("INSERT INTO {} {rows}", self.table)).await
    }

    /// Returns what the table has, and what the day has.
    pub(super) async fn contents(&self, day: NaiveDate) -> Result<(Content, Content), StoreError> {
        let of = async |from: String| {
            let sql = format!("SELECT count() AS rows, sum(cityHash64(*)) AS hash FROM {from}");
            self.in_time(self.query(&sql).fetch_one()).await
        };
        let stored =
            of(format!("(SELECT * FROM clicks WHERE toDate(broker_ts) = '{day}' AND {NOT_DELETED})"));
        Ok((of(self.table.clone()).await?, stored.await?))
    }

    /// Checks that each row of the table is of the day, and at a position of its own.
    pub(super) async fn audit(&self, day: NaiveDate) -> Result<(), RebuildError> {
        let table = &self.table;
        let sql = format!("SELECT count() FROM {table} WHERE toDate(broker_ts) != '{day}'");
        let others: u64 = self.in_time(self.query(&sql).fetch_one()).await?;
        let sql = format!(
            "SELECT count() FROM (SELECT 1 FROM {table} GROUP BY src, koff HAVING count() > 1 LIMIT 100)"
        );
        let doubled: u64 = self.in_time(self.query(&sql).fetch_one()).await?;
        if others + doubled > 0 {
            return Err(RebuildError::Unequal { day, others, doubled });
        }
        Ok(())
    }

    /// Writes down that a day is made again, unless somebody else has begun since.
    pub(super) async fn note(
        &self,
        day: NaiveDate,
        reason: &str,
        recount: Option<Uuid>,
    ) -> Result<(), StoreError> {
        // Reading the table fails when it is gone.
        let sql = format!(
            "INSERT INTO rebuilds (day, at, reason, recount) \
             SELECT '{day}', now64(3), '{reason}', toUUID('{}') WHERE (SELECT count() FROM {}) >= 0",
            recount.unwrap_or_default(),
            self.table
        );
        self.execute(&sql).await
    }

    /// Returns the condition for the rows of a day that are not in the table.
    pub(super) fn is_lacking(&self, day: NaiveDate) -> String {
        format!("toDate(broker_ts) = '{day}' AND (src, koff) NOT IN (SELECT src, koff FROM {})", self.table)
    }

    /// Puts the table's rows of a day in the place of those that were there; then removes those of links that were
    /// deleted meanwhile.
    pub(super) async fn replace(&self, day: NaiveDate) -> Result<(), StoreError> {
        self.execute(&format!("ALTER TABLE clicks REPLACE PARTITION '{day}' FROM {}", self.table)).await?;
        self.execute(&format!(
            "DELETE FROM clicks IN PARTITION '{day}' WHERE link_id IN (SELECT link_id FROM deleted_links)"
        ))
        .await
    }

    /// Returns the marked clicks of a partition, the oldest first, and where each is: those in the table, and those in
    /// other days from the one before on. Also those of former logs, because a first copy may have been on its way when
    /// the log was replaced.
    pub(super) async fn marked(
        &self,
        day: NaiveDate,
        partition: i32,
    ) -> Result<Vec<(u32, u64, String, DateTime<Utc>)>, StoreError> {
        let rows = format!(
            "SELECT src, koff, click_id, broker_ts FROM clicks WHERE again AND toDate(broker_ts) != '{day}' \
               AND toDate(broker_ts) >= toDate('{day}') - 1 \
             UNION ALL SELECT src, koff, click_id, broker_ts FROM {} WHERE again",
            self.table
        );
        self.marked_among(&rows, partition).await
    }

    /// Returns the marked clicks of a partition from a day on, the oldest first, and where each is.
    pub(super) async fn marked_since(
        &self,
        day: NaiveDate,
        partition: i32,
    ) -> Result<Vec<(u32, u64, String, DateTime<Utc>)>, StoreError> {
        let rows = format!(
            "SELECT src, koff, click_id, broker_ts FROM clicks WHERE again \
               AND toDate(broker_ts) >= toDate('{day}') - 1"
        );
        self.marked_among(&rows, partition).await
    }

    async fn marked_among(
        &self,
        rows: &str,
        partition: i32,
    ) -> Result<Vec<(u32, u64, String, DateTime<Utc>)>, StoreError> {
        let sql = format!(
            "SELECT src, koff, click_id, toUnixTimestamp64Milli(broker_ts) FROM ({rows}) \
             WHERE bitAnd(src, 65535) = {partition} ORDER BY src, koff"
        );
        let rows: Vec<(u32, u64, String, i64)> = self.in_time(self.query(&sql).fetch_all()).await?;
        let timed = |(src, koff, id, millis)| Some((src, koff, id, DateTime::from_timestamp_millis(millis)?));
        Ok(rows.into_iter().filter_map(timed).collect())
    }

    /// Returns at which offsets of a range a source has rows.
    pub(super) async fn stored(&self, src: u32, from: u64, to: u64) -> Result<HashSet<u64>, StoreError> {
        let sql = format!("SELECT koff FROM clicks WHERE src = {src} AND koff >= {from} AND koff < {to}");
        Ok(self.in_time(self.query(&sql).fetch_all()).await?.into_iter().collect())
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

/// Returns the days that were closed within the last hour.
pub(super) async fn closed_lately(client: &Client) -> Result<BTreeSet<NaiveDate>, StoreError> {
    let zero = Uuid::nil();
    let sql = format!(
        "SELECT toString(slice) FROM slices WHERE workspace_id = toUUID('{zero}') GROUP BY slice \
         HAVING min(slices.at) > now64(3) - INTERVAL 1 HOUR"
    );
    days_of(client, &sql).await
}

/// Returns the days that have rows for which a condition holds.
pub(super) async fn days_with(client: &Client, condition: &str) -> Result<BTreeSet<NaiveDate>, StoreError> {
    let sql = format!("SELECT DISTINCT toString(toDate(broker_ts)) FROM clicks WHERE {condition}");
    days_of(client, &sql).await
}

async fn days_of(client: &Client, sql: &str) -> Result<BTreeSet<NaiveDate>, StoreError> {
    let days: Vec<String> = within(TIMEOUT, client.query(sql).fetch_all()).await?;
    Ok(days.iter().filter_map(|day| day.parse().ok()).collect())
}

const NOT_DELETED: &str = "link_id NOT IN (SELECT link_id FROM deleted_links)";

/// Changes rows by what a recount has read of their User-Agents and purposes, and all referrers.
fn recounted(rows: &str, recount: Uuid) -> String {
    let columns = ["class", "device_type", "browser", "os"];
    let columns =
        columns.map(|name| format!("if(reading.known, reading.{name}, click.{name}) AS {name}")).join(", ");
    format!(
        "SELECT click.* REPLACE ({columns}) FROM (SELECT * REPLACE ({WITHOUT_WWW} AS referrer) FROM ({rows})) AS click \
         LEFT ANY JOIN (SELECT user_agent, purpose, class, device_type, browser, os, toUInt8(1) AS known \
                        FROM recounts WHERE recount = toUUID('{recount}')) AS reading \
         ON click.user_agent = reading.user_agent AND toString(click.purpose) = reading.purpose"
    )
}
