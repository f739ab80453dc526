//! Rows of clicks: inserts and lookups.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use clickhouse::insert_formatted::InsertFormatted;
use schemas::id::{LinkId, WorkspaceId};
use schemas::row::CLICK_STRUCTURE;

use super::{FencingToken, InsertError, Store, StoreError, TIMEOUT, in_time, list, outcome_of};

/// How far before the time in its message a click's row is searched.
///
/// A row stores the earlier of the edge's time and the broker's, so if the edge's clock ran ahead, the row is before
/// the time in its message. A copy that arrives before that time is searched without limit, see [`CLOCKS_DIFFER`]. So a
/// click counts twice only if its edge's clock ran ahead by more than this, and the edge sent it again after that time
/// or shortly before it. A lookup reads the times of this many days of each link, so a larger value slows every lookup.
const CLOCK_AHEAD: TimeDelta = TimeDelta::days(2);

/// If the time in a message is ahead of the broker's by more than this, the edge's clock ran ahead by an unknown
/// amount, and the row is searched at any earlier time.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::minutes(5);

/// Maximum ids of one lookup statement; keeps its text well below `max_query_size`.
const IDS_PER_LOOKUP: usize = 500;

/// What an insert follows: the last stored row of the source, in a ClickHouse that was not replaced by an older copy
/// since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct After {
    /// The offset of the last stored row.
    pub koff: Option<u64>,
    /// The time up to which the table of progress is known to count the source's clicks. It is written each second, so
    /// a restored copy has an earlier time.
    pub as_of: Option<DateTime<Utc>>,
}

impl After {
    /// The `insert_deduplication_token` with which replicas accept only one insert after a row, from any sender.
    ///
    /// A single server ignores it; there the guard and waiting for older inserts have the same effect.
    fn deduplication_token(self, src: u32) -> String {
        self.koff.map_or_else(|| format!("clicks-{src}-none"), |koff| format!("clicks-{src}-{koff}"))
    }

    /// An additional condition: the server is not an older copy.
    fn is_there(self, src: u32) -> String {
        self.as_of.map_or_else(String::new, |as_of| {
            format!(
                " AND throwIf((SELECT max(as_of) FROM progress WHERE src = {src}) \
                 < fromUnixTimestamp64Milli({}, 'UTC')) = 0",
                as_of.timestamp_millis()
            )
        })
    }
}

/// The key by which a click is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClickKey {
    /// The click's workspace.
    pub workspace_id: WorkspaceId,
    /// The click's link.
    pub link_id: LinkId,
    /// The edge's time, as in the message; the row may have the broker's instead.
    pub edge_time: DateTime<Utc>,
}

/// A click to be looked up among the stored rows: a possible repeat, or one that converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SoughtClick<'a> {
    /// Its key.
    pub key: ClickKey,
    /// Its id.
    pub click_id: &'a str,
    /// A time at which it was there, by another clock than its edge's: the broker's time of this copy, or a
    /// conversion's time.
    pub seen_at: DateTime<Utc>,
}

/// The bytes of one insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Insertion {
    /// Rows in ClickHouse's `RowBinary`.
    pub body: Bytes,
    /// How many rows.
    pub rows: usize,
    /// The offset of the last one.
    pub last_koff: u64,
}

impl Store {
    /// Counts the rows of a source.
    pub async fn rows(&self, src: u32) -> Result<u64, StoreError> {
        let clicks = self.client.everywhere().await?.of("clicks");
        let rows = format!("SELECT count() FROM {clicks} WHERE src = {src}");
        in_time(self.client.query_raw(&rows).fetch_one()).await
    }

    /// Returns the newest possible repeats of a partition that were stored since `since`, at most `limit`, oldest
    /// first. Includes former logs, because a first copy may have been in flight when the log was replaced.
    pub async fn possible_repeats_since(
        &self,
        partition: i32,
        since: DateTime<Utc>,
        limit: usize,
    ) -> Result<Vec<(String, DateTime<Utc>)>, StoreError> {
        let newest_first: Vec<(String, i64)> = in_time(
            self.client
                .query(
                    "SELECT click_id, toUnixTimestamp64Milli(broker_ts) FROM clicks \
                     WHERE bitAnd(src, 65535) = ? AND again AND broker_ts >= fromUnixTimestamp64Milli(?, 'UTC') \
                     ORDER BY src DESC, koff DESC LIMIT ?",
                )
                .bind(partition)
                .bind(since.timestamp_millis())
                .bind(limit)
                .fetch_all(),
        )
        .await?;
        let times = newest_first.into_iter().rev();
        Ok(times.filter_map(|(id, millis)| Some((id, DateTime::from_timestamp_millis(millis)?))).collect())
    }

    /// Returns which of these possible repeats are stored, in any partition and of any age.
    pub async fn stored(&self, clicks: &[SoughtClick<'_>]) -> Result<HashSet<String>, StoreError> {
        self.stored_where("1", clicks).await
    }

    /// Returns which of these possible repeats are stored and match a condition. Replicas are asked once they have all
    /// clicks: a repeat whose first copy another one alone has would count twice.
    ///
    /// # Errors
    /// Also when they do not get them in time.
    pub(crate) async fn stored_where(
        &self,
        condition: &str,
        clicks: &[SoughtClick<'_>],
    ) -> Result<HashSet<String>, StoreError> {
        if clicks.is_empty() {
            return Ok(HashSet::new());
        }
        let complete = Self { client: self.client.pinned(), ..self.clone() };
        in_time(complete.client.sync_each_shard(&["clicks"])).await?;
        complete.stored_in(&complete.client.everywhere().await?.of("clicks"), condition, clicks).await
    }

    /// Returns which of these possible repeats are rows of a table that match a condition.
    pub(crate) async fn stored_in(
        &self,
        table: &str,
        condition: &str,
        clicks: &[SoughtClick<'_>],
    ) -> Result<HashSet<String>, StoreError> {
        Ok(self.times_in(table, condition, clicks).await?.into_keys().collect())
    }

    /// Returns the times of these clicks, by id, in the rows of a table that match a condition; the earliest of
    /// several.
    pub(super) async fn times_in(
        &self,
        table: &str,
        condition: &str,
        clicks: &[SoughtClick<'_>],
    ) -> Result<HashMap<String, DateTime<Utc>>, StoreError> {
        let mut clicks = clicks.to_vec();
        // Rows that are close in the table are looked up together.
        clicks.sort_unstable();
        let mut stored = HashMap::new();
        for chunk in clicks.chunks(IDS_PER_LOOKUP) {
            let links = list(chunk.iter().map(|SoughtClick { key, .. }| {
                format!("(toUUID('{}'), toUUID('{}'))", key.workspace_id.uuid(), key.link_id.uuid())
            }));
            let millis: Vec<i64> = chunk.iter().map(|click| click.key.edge_time.timestamp_millis()).collect();
            let earliest = |SoughtClick { key, seen_at, .. }: &SoughtClick<'_>| {
                let ran_ahead = key.edge_time > *seen_at + CLOCKS_DIFFER;
                if ran_ahead { 0 } else { (key.edge_time - CLOCK_AHEAD).timestamp_millis() }
            };
            let (first, last) = (chunk.iter().map(earliest).min(), millis.iter().max());
            let (Some(first), Some(last)) = (first, last) else { continue };
            let ids: Vec<&str> = chunk.iter().map(|click| click.click_id).collect();
            // The row has the edge's time, or the broker's if that was earlier. The long id is read last, and
            // only where one of the two holds.
            let sql = format!(
                "SELECT click_id, toUnixTimestamp64Milli(occurred_at) FROM {} \
                 PREWHERE (workspace_id, link_id) IN ({links}) \
                 AND occurred_at BETWEEN fromUnixTimestamp64Milli(?, 'UTC') AND fromUnixTimestamp64Milli(?, 'UTC') \
                 AND (occurred_at = broker_ts OR toUnixTimestamp64Milli(occurred_at) IN ({times})) \
                 WHERE {condition} AND click_id IN ?",
                // The password of another shard may have a question mark.
                table.replace('?', "??"),
                times = list(millis.iter()),
            );
            let query = self.client.query(&sql).bind(first).bind(last).bind(ids);
            let query = query.with_setting("max_execution_time", TIMEOUT.as_secs().to_string());
            let rows: Vec<(String, i64)> = in_time(query.fetch_all()).await?;
            for (id, millis) in rows {
                let time = DateTime::from_timestamp_millis(millis).unwrap_or_default();
                stored
                    .entry(id)
                    .and_modify(|first: &mut DateTime<Utc>| *first = time.min(*first))
                    .or_insert(time);
            }
        }
        Ok(stored)
    }

    /// Inserts rows of one source and one table partition after the stored rows: all of them, or none.
    ///
    /// # Errors
    /// [`InsertError::Fenced`] when another process owns the source or stored rows after the same one, or ClickHouse
    /// was replaced by an older copy: no row was stored. After [`InsertError::InDoubt`], read the rows back.
    pub async fn insert(
        &self,
        token: FencingToken,
        after: After,
        insertion: &Insertion,
    ) -> Result<(), InsertError> {
        // What was inserted is read from the same replica.
        let store = Self { client: self.client.pinned(), ..self.clone() };
        let condition = token.guard() + &after.is_there(token.src);
        let insert = store
            .insert_into("clicks", &condition)
            .with_setting("query_id", token.statement_id())
            .with_setting("max_execution_time", INSERT_SECONDS)
            .with_setting("insert_deduplicate", "1")
            .with_setting("insert_deduplication_token", after.deduplication_token(token.src));
        outcome_of(send(insert, insertion).await)?;
        // Replicas answer alike when another insert after that row was first.
        if store.client.is_replicated()
            && store.last_offset(token.src, after.koff).await? != insertion.last_koff
        {
            return Err(InsertError::Fenced);
        }
        Ok(())
    }

    /// Returns the offset of the last row of a source, from one offset on; 0 without rows.
    async fn last_offset(&self, src: u32, from: Option<u64>) -> Result<u64, InsertError> {
        let query = self.client.query("SELECT max(koff) FROM clicks WHERE src = ? AND koff >= ?");
        let last = query.bind(src).bind(from.unwrap_or_default()).fetch_one();
        in_time(last).await.map_err(InsertError::InDoubt)
    }

    /// Inserts missing rows of a source: all of them, or none.
    ///
    /// # Errors
    /// As those of [`Store::insert`].
    pub(crate) async fn insert_missing(
        &self,
        token: FencingToken,
        insertion: &Insertion,
    ) -> Result<(), InsertError> {
        let insert =
            self.insert_into("clicks", &token.guard()).with_setting("query_id", token.statement_id());
        outcome_of(send(insert, insertion).await)
    }

    /// Inserts rows of one day into a staging table: all of them, or none.
    pub(crate) async fn insert_staged(&self, table: &str, insertion: &Insertion) -> Result<(), StoreError> {
        send(self.insert_into(table, "1"), insertion).await
    }

    fn insert_into(&self, table: &str, condition: &str) -> InsertFormatted {
        self.client
            .insert_formatted_with(insert_statement(table, condition))
            // ClickHouse would combine asynchronous inserts, and answer and fence them together.
            .with_setting("async_insert", "0")
            // One block, and so one part: no parallel writers, and block limits above any batch.
            .with_setting("max_insert_threads", "1")
            .with_setting("max_insert_block_size", BLOCK_ROWS)
            .with_setting("min_insert_block_size_rows", BLOCK_ROWS)
            .with_setting("min_insert_block_size_bytes", BLOCK_BYTES)
            // A batch that spans two table partitions would be rejected as a whole instead of stored in part.
            .with_setting("max_partitions_per_insert_block", "1")
            .with_setting("wait_end_of_query", "1")
    }
}

async fn send(mut insert: InsertFormatted, insertion: &Insertion) -> Result<(), StoreError> {
    in_time(async {
        insert.send(insertion.body.clone()).await?;
        insert.end().await
    })
    .await
}

/// How long an insert may run: on replicas, its token must still be remembered when it ends.
const INSERT_SECONDS: &str = "60";

/// Above the limits of any batch; see [`crate::pipeline::batch::Limits`].
const BLOCK_ROWS: &str = "1048576";
const BLOCK_BYTES: &str = "1073741824";

fn insert_statement(table: &str, condition: &str) -> String {
    let columns = list(columns());
    let structure = CLICK_STRUCTURE.replace('\'', "\\'");
    format!(
        "INSERT INTO {table} ({columns}) SELECT {columns} FROM input('{structure}') \
         WHERE {condition} FORMAT RowBinary"
    )
}

/// The column names in [`CLICK_STRUCTURE`], whose types contain commas as well.
fn columns() -> impl Iterator<Item = &'static str> {
    CLICK_STRUCTURE.split(", ").filter(|part| !part.starts_with('\'')).filter_map(|part| {
        let (name, _) = part.split_once(' ')?;
        Some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_of_the_structure_is_inserted() {
        let names: Vec<&str> = columns().collect();
        assert_eq!(names.len(), 24);
        assert_eq!((names[0], names[2], names[23]), ("workspace_id", "occurred_at", "broker_ts"));
    }

    #[test]
    fn an_insert_carries_its_guard_and_its_predecessor() {
        let as_of = DateTime::from_timestamp_millis(1_790_000_000_123);
        let (token, after) = (FencingToken { src: 65_536, epoch: 7 }, After { koff: Some(41), as_of });
        let sql = insert_statement("clicks", &(token.guard() + &after.is_there(token.src)));
        assert!(sql.starts_with("INSERT INTO clicks ("), "{sql}");
        assert!(sql.contains("SELECT max(epoch) FROM owners WHERE src = 65536) != 7"), "{sql}");
        assert!(sql.contains("DateTime64(3, \\'UTC\\')"), "{sql}");
        assert!(sql.contains("WHERE src = 65536) < fromUnixTimestamp64Milli(1790000000123, 'UTC')"), "{sql}");
        assert_eq!(after.deduplication_token(65_536), "clicks-65536-41");
        assert_eq!(After::default().deduplication_token(65_536), "clicks-65536-none");
    }
}
