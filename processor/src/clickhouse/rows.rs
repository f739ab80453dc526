//! Rows of clicks: storing them behind what is stored, and finding those that are there.

use std::collections::HashSet;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use clickhouse::insert_formatted::InsertFormatted;
use schemas::id::{LinkId, WorkspaceId};
use schemas::row::CLICK_STRUCTURE;

use super::{InsertError, Right, Store, StoreError, in_time, list, outcome_of};

/// How far before the time in its message the row of a click is looked for.
///
/// A row has the earlier one of the edge's clock and the broker's, so the row of a click from a clock that ran ahead is
/// before the time in its message. Copies that come before that time are looked for however far the clock ran ahead, see
/// [`CLOCKS_DIFFER`]; so a click counts twice only when its edge's clock ran ahead by more than this, and the edge sent it
/// again after that time, or within those minutes before it. A look-up reads the times of this many days of the links, so
/// more of them would make each look-up slower.
const CLOCK_AHEAD: TimeDelta = TimeDelta::days(2);

/// How far ahead of the broker's clock the time in a message is at least for the edge's clock to have run ahead: how far
/// is not known then, and the row is looked for at any time before.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::minutes(5);

/// Ids looked up by one statement: its text stays well below `max_query_size`.
const IDS_PER_LOOK_UP: usize = 500;

/// What the rows of an insert follow: the last stored row of their source, in a ClickHouse that was not replaced by an
/// older copy of it since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct After {
    /// The offset of the last stored row.
    pub koff: Option<u64>,
    /// Up to when ClickHouse is known to have said that the source's clicks are counted. It says so each second, so a
    /// copy that was restored says less.
    pub as_of: Option<DateTime<Utc>>,
}

impl After {
    /// The name by which a replicated table lets one insert only follow a row; see `insert_deduplication_token`.
    ///
    /// A table of one server ignores it: there the guard, with older inserts waited out, does the same.
    fn token(self, src: u32) -> String {
        self.koff.map_or_else(|| format!("clicks-{src}-none"), |koff| format!("clicks-{src}-{koff}"))
    }

    /// The condition, after another one, under which the server is not an older copy.
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

/// What a click marked `again` is looked up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgainKey {
    /// The click's workspace.
    pub workspace_id: WorkspaceId,
    /// The click's link.
    pub link_id: LinkId,
    /// The edge's clock, as the message has it: the row may say the broker's instead.
    pub edge_time: DateTime<Utc>,
}

/// A click that is looked for among the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sought<'a> {
    /// Where it is.
    pub key: AgainKey,
    /// Its id.
    pub click_id: &'a str,
    /// The broker's clock of the copy at hand.
    pub broker_ts: DateTime<Utc>,
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
        in_time(self.client.query("SELECT count() FROM clicks WHERE src = ?").bind(src).fetch_one()).await
    }

    /// Returns the marked clicks of a partition that were stored since `since`, the oldest first, at most `limit`: also
    /// those of former logs, because a first copy may have been on its way when the log was replaced.
    pub async fn marked_since(
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

    /// Returns which of these clicks, all marked `again`, are stored, in whichever partition and however old.
    pub async fn stored(&self, clicks: &[Sought<'_>]) -> Result<HashSet<String>, StoreError> {
        self.stored_in("clicks", "1", clicks).await
    }

    /// Returns which of these clicks, all marked `again`, are rows of a table for which a condition holds.
    pub(crate) async fn stored_in(
        &self,
        table: &str,
        condition: &str,
        clicks: &[Sought<'_>],
    ) -> Result<HashSet<String>, StoreError> {
        let mut clicks = clicks.to_vec();
        // Neighbours in the table are looked up together.
        clicks.sort_unstable();
        let mut stored = HashSet::new();
        for chunk in clicks.chunks(IDS_PER_LOOK_UP) {
            let links = list(chunk.iter().map(|Sought { key, .. }| {
                format!("(toUUID('{}'), toUUID('{}'))", key.workspace_id.uuid(), key.link_id.uuid())
            }));
            let millis: Vec<i64> =
                chunk.iter().map(|sought| sought.key.edge_time.timestamp_millis()).collect();
            let earliest = |Sought { key, broker_ts, .. }: &Sought<'_>| {
                let ran_ahead = key.edge_time > *broker_ts + CLOCKS_DIFFER;
                if ran_ahead { 0 } else { (key.edge_time - CLOCK_AHEAD).timestamp_millis() }
            };
            let (first, last) = (chunk.iter().map(earliest).min(), millis.iter().max());
            let (Some(first), Some(last)) = (first, last) else { continue };
            let ids: Vec<&str> = chunk.iter().map(|sought| sought.click_id).collect();
            // The row has the edge's time, or the broker's if that was earlier. The long id is read last, and
            // only where one of the two holds.
            let sql = format!(
                "SELECT click_id FROM {table} \
                 PREWHERE (workspace_id, link_id) IN ({links}) \
                 AND occurred_at BETWEEN fromUnixTimestamp64Milli(?, 'UTC') AND fromUnixTimestamp64Milli(?, 'UTC') \
                 AND (occurred_at = broker_ts OR toUnixTimestamp64Milli(occurred_at) IN ({times})) \
                 WHERE {condition} AND click_id IN ?",
                times = list(millis.iter()),
            );
            let query = self.client.query(&sql).bind(first).bind(last).bind(ids);
            stored.extend(in_time(query.fetch_all::<String>()).await?);
        }
        Ok(stored)
    }

    /// Inserts rows of one source and one table partition under an epoch, behind what is stored: all of them, or none.
    ///
    /// # Errors
    /// [`InsertError::Fenced`] is a clear no: of another owner, or because ClickHouse was replaced by an older copy. After
    /// [`InsertError::Doubtful`] only reading the rows back tells.
    pub async fn insert(&self, right: Right, after: After, insertion: &Insertion) -> Result<(), InsertError> {
        let condition = right.guard() + &after.is_there(right.src);
        let insert = self
            .insert_into("clicks", &condition)
            .with_setting("query_id", right.statement_id())
            .with_setting("insert_deduplication_token", after.token(right.src));
        outcome_of(send(insert, insertion).await)
    }

    /// Inserts rows that are missing among those of a source, under an epoch: all of them, or none.
    ///
    /// # Errors
    /// As those of [`Store::insert`].
    pub(crate) async fn insert_missing(
        &self,
        right: Right,
        insertion: &Insertion,
    ) -> Result<(), InsertError> {
        let insert =
            self.insert_into("clicks", &right.guard()).with_setting("query_id", right.statement_id());
        outcome_of(send(insert, insertion).await)
    }

    /// Inserts rows of one day into a staging table: all of them, or none.
    pub(crate) async fn insert_staged(&self, table: &str, insertion: &Insertion) -> Result<(), StoreError> {
        send(self.insert_into(table, "1"), insertion).await
    }

    fn insert_into(&self, table: &str, condition: &str) -> InsertFormatted {
        self.client
            .insert_formatted_with(insert_statement(table, condition))
            // An insert that ClickHouse gathers with others would be answered for, and fenced, with them.
            .with_setting("async_insert", "0")
            // One block, and so one part: no parallel writers, and no cut below what a batch can hold.
            .with_setting("max_insert_threads", "1")
            .with_setting("max_insert_block_size", BLOCK_ROWS)
            .with_setting("min_insert_block_size_rows", BLOCK_ROWS)
            .with_setting("min_insert_block_size_bytes", BLOCK_BYTES)
            // Should a batch ever span two table partitions, it is refused as a whole instead of stored by halves.
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

/// More rows and bytes than any batch has; see [`crate::pipeline::batch::Limits`].
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

/// The names in [`CLICK_STRUCTURE`], whose types have commas of their own.
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
    fn an_insert_carries_its_guard_and_what_it_follows() {
        let as_of = DateTime::from_timestamp_millis(1_790_000_000_123);
        let (right, after) = (Right { src: 65_536, epoch: 7 }, After { koff: Some(41), as_of });
        let sql = insert_statement("clicks", &(right.guard() + &after.is_there(right.src)));
        assert!(sql.starts_with("INSERT INTO clicks ("), "{sql}");
        assert!(sql.contains("SELECT max(epoch) FROM owners WHERE src = 65536) != 7"), "{sql}");
        assert!(sql.contains("DateTime64(3, \\'UTC\\')"), "{sql}");
        assert!(sql.contains("WHERE src = 65536) < fromUnixTimestamp64Milli(1790000000123, 'UTC')"), "{sql}");
        assert_eq!(after.token(65_536), "clicks-65536-41");
        assert_eq!(After::default().token(65_536), "clicks-65536-none");
    }
}
