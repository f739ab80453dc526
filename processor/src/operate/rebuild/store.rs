//! The statements of a rebuild.

use std::collections::HashSet;

use chrono::{DateTime, NaiveDate, Utc};
use clickhouse::Row;
use schemas::referrer::NORMALIZED;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clickhouse::statements::Statements;
use crate::clickhouse::{Store, StoreError};

/// A range of a partition's offsets that is read from the log again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Range {
    pub(crate) partition: i32,
    pub(crate) src: u32,
    /// The shard that has the source's rows.
    #[serde(skip)]
    pub(crate) shard: u16,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Links of one statement that deletes; keeps it below `max_query_size`.
const LINKS_PER_DELETE: usize = 1_000;

/// What the names of staging tables begin with.
const PREFIX: &str = "clicks_staging_";

/// The clicks of a day, in one table or several.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Row, Deserialize)]
pub(super) struct Content {
    pub(super) rows: u64,
    /// The sum of the hashes of all rows.
    hash: u64,
}

impl Content {
    pub(super) fn and(self, other: Self) -> Self {
        Self { rows: self.rows + other.rows, hash: self.hash.wrapping_add(other.hash) }
    }
}

/// The staging table of one attempt on a shard, and the tables around it.
pub(super) struct Staging {
    /// Stays with the replica that has the staging table.
    pub(super) store: Store,
    pub(super) statements: Statements,
    table: String,
}

impl Staging {
    /// Creates a staging table and drops all others there, which stops the rebuilds that use them. `store` stays with a
    /// replica.
    pub(super) async fn new(store: Store) -> Result<Self, StoreError> {
        let statements = Statements::new(store.client().clone());
        let staging = Self { store, statements, table: format!("{PREFIX}{}", Uuid::now_v7().simple()) };
        let others = format!(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND startsWith(name, '{PREFIX}')"
        );
        let others: Vec<String> = staging.statements.fetch_all(&others).await?;
        for table in others {
            tracing::warn!("dropping {table}, which another replay or recount left behind or still uses");
            staging.statements.execute(&format!("DROP TABLE IF EXISTS {table} SYNC")).await?;
        }
        staging.statements.execute(&schemas::clickhouse::staging(&staging.table)).await?;
        Ok(staging)
    }

    /// Returns whether the rows of a range are on this shard.
    pub(super) fn has(&self, range: &Range) -> bool {
        self.store.client().shard().is_none_or(|shard| shard == range.shard)
    }

    /// Returns the table's name.
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// Removes the table.
    pub(super) async fn drop(&self) -> Result<(), StoreError> {
        self.statements.execute(&format!("DROP TABLE IF EXISTS {} SYNC", self.table)).await
    }

    /// Replaces the table's content by the rows of a day outside these ranges, changed by the recount.
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
            self.statements.client.catch_up(&["recounts"]).await?;
            rows = recounted(&rows, recount);
        }
        self.statements.execute(&format!("TRUNCATE TABLE {}", self.table)).await?;
        self.statements.execute(&format!("INSERT INTO {} {rows}", self.table)).await
    }

    /// Returns the contents of the table and of the day.
    pub(super) async fn contents(&self, day: NaiveDate) -> Result<(Content, Content), StoreError> {
        let of = async |from: String| {
            let sql = format!("SELECT count() AS rows, sum(cityHash64(*)) AS hash FROM {from}");
            self.statements.fetch_one(&sql).await
        };
        let stored =
            of(format!("(SELECT * FROM clicks WHERE toDate(broker_ts) = '{day}' AND {NOT_DELETED})"));
        Ok((of(self.table.clone()).await?, stored.await?))
    }

    /// Counts the rows of the table that are of other days, and the positions that have several rows; at most 100.
    pub(super) async fn unexpected_rows(&self, day: NaiveDate) -> Result<(u64, u64), StoreError> {
        let table = &self.table;
        let sql = format!("SELECT count() FROM {table} WHERE toDate(broker_ts) != '{day}'");
        let others: u64 = self.statements.fetch_one(&sql).await?;
        let sql = format!(
            "SELECT count() FROM (SELECT 1 FROM {table} GROUP BY src, koff HAVING count() > 1 LIMIT 100)"
        );
        let doubled: u64 = self.statements.fetch_one(&sql).await?;
        Ok((others, doubled))
    }

    /// Records that a day is rebuilt; fails when another rebuild has started since.
    pub(super) async fn note(
        &self,
        day: NaiveDate,
        reason: &str,
        recount: Option<Uuid>,
    ) -> Result<(), StoreError> {
        // Reading the staging table fails when it was dropped.
        let sql = format!(
            "INSERT INTO rebuilds (day, at, reason, recount) \
             SELECT '{day}', now64(3), '{reason}', toUUID('{}') WHERE (SELECT count() FROM {}) >= 0",
            recount.unwrap_or_default(),
            self.table
        );
        self.statements.execute(&sql).await
    }

    /// Returns the table's last offset of each source.
    pub(super) async fn ends(&self) -> Result<Vec<(u32, u64)>, StoreError> {
        self.statements.fetch_all(&format!("SELECT src, max(koff) FROM {} GROUP BY src", self.table)).await
    }

    /// Replaces the day's rows by the table's.
    pub(super) async fn replace(&self, day: NaiveDate) -> Result<(), StoreError> {
        self.statements
            .execute(&format!("ALTER TABLE clicks REPLACE PARTITION '{day}' FROM {}", self.table))
            .await
    }

    /// Deletes the day's rows of links that were deleted meanwhile.
    pub(super) async fn remove_deleted(&self, day: NaiveDate) -> Result<(), StoreError> {
        // By their ids: replicas delete each for itself, and must not decide by what each knows then.
        let deleted = format!(
            "SELECT DISTINCT toString(link_id) FROM clicks WHERE toDate(broker_ts) = '{day}' AND NOT {NOT_DELETED}"
        );
        let deleted: Vec<String> = self.statements.fetch_all(&deleted).await?;
        for links in deleted.chunks(LINKS_PER_DELETE) {
            let links = links.join("', '");
            let delete = format!("DELETE FROM clicks IN PARTITION '{day}' WHERE link_id IN ('{links}')");
            self.statements.execute(&delete).await?;
        }
        Ok(())
    }

    /// Returns the possible repeats of a partition with their positions, oldest first: those in the table, and those of
    /// other days from the previous one on. Includes former logs, because a first copy may have been in flight when the
    /// log was replaced.
    pub(super) async fn possible_repeats(
        &self,
        day: NaiveDate,
        partition: i32,
    ) -> Result<Vec<(u32, u64, String, DateTime<Utc>)>, StoreError> {
        let sql = format!(
            "SELECT src, koff, click_id, toUnixTimestamp64Milli(broker_ts) FROM (\
               SELECT src, koff, click_id, broker_ts FROM clicks WHERE again AND toDate(broker_ts) != '{day}' \
                 AND toDate(broker_ts) >= toDate('{day}') - 1 \
               UNION ALL SELECT src, koff, click_id, broker_ts FROM {} WHERE again) \
             WHERE bitAnd(src, 65535) = {partition} ORDER BY src, koff",
            self.table
        );
        let rows: Vec<(u32, u64, String, i64)> = self.statements.fetch_all(&sql).await?;
        let timed = |(src, koff, id, millis)| Some((src, koff, id, DateTime::from_timestamp_millis(millis)?));
        Ok(rows.into_iter().filter_map(timed).collect())
    }

    /// Returns the stored possible repeats of a partition since the day before `day`.
    pub(super) async fn possible_repeats_since(
        &self,
        day: NaiveDate,
        partition: i32,
    ) -> Result<Vec<String>, StoreError> {
        let sql = format!(
            "SELECT click_id FROM clicks WHERE again AND toDate(broker_ts) >= toDate('{day}') - 1 \
               AND bitAnd(src, 65535) = {partition}"
        );
        self.statements.fetch_all(&sql).await
    }

    /// Returns the offsets of a range at which a source has rows.
    pub(super) async fn stored(&self, src: u32, from: u64, to: u64) -> Result<HashSet<u64>, StoreError> {
        let sql = format!("SELECT koff FROM clicks WHERE src = {src} AND koff >= {from} AND koff < {to}");
        Ok(self.statements.fetch_all(&sql).await?.into_iter().collect())
    }
}

const NOT_DELETED: &str = "link_id NOT IN (SELECT link_id FROM deleted_links)";

/// Applies a recount to a `SELECT` of rows, and gives all referrers their one spelling.
fn recounted(rows: &str, recount: Uuid) -> String {
    let columns = ["class", "device_type", "browser", "os"];
    let columns =
        columns.map(|name| format!("if(changed.known, changed.{name}, click.{name}) AS {name}")).join(", ");
    format!(
        "SELECT click.* REPLACE ({columns}) FROM (SELECT * REPLACE ({NORMALIZED} AS referrer) FROM ({rows})) AS click \
         LEFT ANY JOIN (SELECT user_agent, purpose, class, device_type, browser, os, toUInt8(1) AS known \
                        FROM recounts WHERE recount = toUUID('{recount}')) AS changed \
         ON click.user_agent = changed.user_agent AND toString(click.purpose) = changed.purpose"
    )
}
