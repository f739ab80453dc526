//! Every statement that the processor runs in ClickHouse.

mod positions;

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use clickhouse::insert_formatted::InsertFormatted;
use clickhouse::{Client, Row};
use schemas::clickhouse::under_epoch;
use schemas::id::LinkId;
use schemas::message::DeletedLink;
use schemas::row::{CLICK_STRUCTURE, CONVERSION_COLUMNS};
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::batch::{AgainKey, BatchRow, Insertion};

pub use self::positions::{Position, Progress, StoredRow, Stretch};

/// How long ClickHouse may take for anything before the answer counts as lost.
const TIMEOUT: Duration = Duration::from_secs(30);

/// ClickHouse's code of `FUNCTION_THROW_IF_VALUE_IS_NON_ZERO`, by which the guard of an insert refuses it.
const REFUSED: &str = "Code: 395.";

/// How far before the time in its message the row of a click is looked for.
///
/// A row has the earlier one of the edge's clock and the broker's, so the row of a click from a clock that ran ahead is
/// before the time in its message.
const CLOCK_AHEAD: TimeDelta = TimeDelta::days(1);

/// How far ahead of the broker's clock the time in a message is at least for the edge's clock to have run ahead: how far
/// is not known then, and the row is looked for at any time before.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::minutes(5);

/// How often older statements are looked for while they are waited for.
pub(crate) const WAIT_OUT_INTERVAL: Duration = Duration::from_millis(100);

/// Ids looked up by one statement: its text stays well below `max_query_size`.
const IDS_PER_LOOK_UP: usize = 500;

/// Why a statement's result is not known.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// ClickHouse refused, or could not be reached, or broke off.
    #[error(transparent)]
    Clickhouse(#[from] clickhouse::error::Error),
    /// No answer came within so long.
    #[error("no answer from ClickHouse within {} s", .0.as_secs())]
    Timeout(Duration),
}

/// Why an insert was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum InsertError {
    /// A condition of the statement does not hold; no row was stored.
    #[error("another processor owns this partition now, or ClickHouse is an older copy")]
    Fenced,
    /// Whether the rows are stored is not known.
    #[error(transparent)]
    Doubtful(StoreError),
}

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

/// Under whose epoch a statement writes: one that is not the highest any more is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// The source.
    pub src: u32,
    /// The epoch.
    pub epoch: u64,
}

impl Right {
    /// The condition under which a statement is let through.
    pub(crate) fn guard(self) -> String {
        under_epoch(self.src, self.epoch)
    }

    /// A name by which [`Store::older_inserts`] finds the statement.
    pub(crate) fn statement_id(self) -> String {
        format!("clicks-{}-{}-{}", self.src, self.epoch, Uuid::now_v7().simple())
    }
}

#[derive(Row, Deserialize)]
struct AddedLink {
    #[serde(with = "clickhouse::serde::uuid")]
    link_id: Uuid,
    added_at: i64,
}

/// Access to the tables of clicks.
#[derive(Clone)]
pub struct Store {
    client: Client,
    /// Which process this is, for people who read the table of owners.
    owner: String,
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Store").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Store {
    /// Makes a store whose name among the owners is `owner`.
    pub fn new(client: Client, owner: String) -> Self {
        Self { client, owner }
    }

    /// Takes the source over: from now on inserts under any other epoch are refused.
    ///
    /// The upper half of an epoch counts and the lower half is random, because two processors that take over at
    /// the same time would else both write, and then both hold, the same number.
    pub async fn raise_epoch(&self, src: u32) -> Result<u64, StoreError> {
        let highest: u64 =
            in_time(self.client.query("SELECT max(epoch) FROM owners WHERE src = ?").bind(src).fetch_one())
                .await?;
        let (_, random) = Uuid::now_v7().as_u64_pair();
        let epoch = ((highest >> 32) + 1) << 32 | (random & u64::from(u32::MAX));
        let insert = self
            .client
            .query("INSERT INTO owners (src, epoch, owner, taken_at) SELECT ?, ?, ?, now64(3)")
            .bind(src)
            .bind(epoch)
            .bind(&self.owner)
            .with_setting("async_insert", "0");
        in_time(insert.execute()).await?;
        Ok(epoch)
    }

    /// Kills the inserts of a source under epochs before `epoch`, and returns how many are still running.
    ///
    /// An insert reads its guard's epoch after it is listed in `system.processes`, so one that is not listed after
    /// the epoch was raised is refused. One whose sender has stopped half way listens for more until the server's
    /// `http_receive_timeout`, and cannot be killed earlier.
    pub async fn older_inserts(&self, src: u32, epoch: u64) -> Result<u64, StoreError> {
        // Other databases of the same server have the same sources.
        const OLDER: &str = "current_database = currentDatabase() AND startsWith(query_id, ?) \
                             AND toUInt64OrZero(splitByChar('-', query_id)[3]) < ?";
        let prefix = format!("clicks-{src}-");
        let kill = format!("KILL QUERY WHERE {OLDER} ASYNC");
        if let Err(error) = in_time(self.client.query(&kill).bind(&prefix).bind(epoch).execute()).await {
            tracing::debug!(%error, "cannot kill older inserts, waiting for them instead");
        }
        let count = format!("SELECT count() FROM system.processes WHERE {OLDER}");
        in_time(self.client.query(&count).bind(&prefix).bind(epoch).fetch_one()).await
    }

    /// Takes a source from whoever has it: when this returns, nobody writes under an older epoch any more.
    pub(crate) async fn fence(&self, src: u32) -> Result<Right, StoreError> {
        let epoch = self.raise_epoch(src).await?;
        self.wait_out(src, epoch).await?;
        Ok(Right { src, epoch })
    }

    /// Waits until no statement under an epoch before `epoch` is running.
    pub(crate) async fn wait_out(&self, src: u32, epoch: u64) -> Result<(), StoreError> {
        while self.older_inserts(src, epoch).await? > 0 {
            sleep(WAIT_OUT_INTERVAL).await;
        }
        Ok(())
    }

    /// Returns what ClickHouse's clock says.
    pub(crate) async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        let millis: i64 =
            in_time(self.client.query("SELECT toUnixTimestamp64Milli(now64(3))").fetch_one()).await?;
        Ok(DateTime::from_timestamp_millis(millis).unwrap_or_default())
    }

    /// Returns the deleted links that were added since a time in milliseconds of ClickHouse's clock, and when.
    pub async fn deleted_links(&self, since: i64) -> Result<Vec<(LinkId, i64)>, StoreError> {
        let rows: Vec<AddedLink> = in_time(
            self.client
                .query(
                    "SELECT link_id, toUnixTimestamp64Milli(added_at) AS added_at FROM deleted_links \
                     WHERE deleted_links.added_at >= fromUnixTimestamp64Milli(?, 'UTC')",
                )
                .bind(since)
                .fetch_all(),
        )
        .await?;
        Ok(rows.into_iter().map(|row| (LinkId::from_uuid(row.link_id), row.added_at)).collect())
    }

    /// Stores deleted links; one that is there already stays as it is.
    pub async fn insert_deleted_links(&self, links: &[DeletedLink]) -> Result<(), StoreError> {
        let values = list(links.iter().map(|link| {
            let deleted_at = link.deleted_at.timestamp_millis();
            format!("('{}', fromUnixTimestamp64Milli({deleted_at}, 'UTC'))", link.id.uuid())
        }));
        let insert = self
            .client
            .query(&format!("INSERT INTO deleted_links (link_id, deleted_at) VALUES {values}"))
            .with_setting("async_insert", "0");
        in_time(insert.execute()).await
    }

    /// Stores rows of conversions, each as [`schemas::row::write_conversion`] writes it.
    pub async fn insert_conversions(&self, rows: Bytes) -> Result<(), StoreError> {
        let mut insert = self
            .client
            .insert_formatted_with(format!("INSERT INTO conversions ({CONVERSION_COLUMNS}) FORMAT RowBinary"))
            .with_setting("async_insert", "0")
            .with_setting("wait_end_of_query", "1");
        in_time(async {
            insert.send(rows).await?;
            insert.end().await
        })
        .await
    }

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
    pub async fn stored(&self, clicks: &[&BatchRow]) -> Result<HashSet<String>, StoreError> {
        self.stored_in("clicks", "1", clicks).await
    }

    /// Returns which of these clicks, all marked `again`, are rows of a table for which a condition holds.
    pub(crate) async fn stored_in(
        &self,
        table: &str,
        condition: &str,
        clicks: &[&BatchRow],
    ) -> Result<HashSet<String>, StoreError> {
        let mut clicks: Vec<_> = clicks
            .iter()
            .filter_map(|row| row.again.map(|key| (key, row.click_id.as_str(), row.broker_ts)))
            .collect();
        // Neighbours in the table are looked up together.
        clicks.sort_unstable();
        let mut stored = HashSet::new();
        for chunk in clicks.chunks(IDS_PER_LOOK_UP) {
            let links = list(chunk.iter().map(|(key, _, _)| {
                format!("(toUUID('{}'), toUUID('{}'))", key.workspace_id.uuid(), key.link_id.uuid())
            }));
            let millis: Vec<i64> = chunk.iter().map(|(key, _, _)| key.edge_time.timestamp_millis()).collect();
            let earliest = |(key, _, broker_ts): &(AgainKey, &str, DateTime<Utc>)| {
                let ran_ahead = key.edge_time > *broker_ts + CLOCKS_DIFFER;
                if ran_ahead { 0 } else { (key.edge_time - CLOCK_AHEAD).timestamp_millis() }
            };
            let (first, last) = (chunk.iter().map(earliest).min(), millis.iter().max());
            let (Some(first), Some(last)) = (first, last) else { continue };
            let ids: Vec<&str> = chunk.iter().map(|(_, id, _)| *id).collect();
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

/// More rows and bytes than any batch has; see [`crate::batch::Limits`].
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

/// Tells a statement that was refused by its guard from one of which nothing is known.
pub(crate) fn outcome_of(outcome: Result<(), StoreError>) -> Result<(), InsertError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(StoreError::Clickhouse(clickhouse::error::Error::BadResponse(text)))
            if text.starts_with(REFUSED) =>
        {
            Err(InsertError::Fenced)
        }
        Err(error) => Err(InsertError::Doubtful(error)),
    }
}

/// The names in [`CLICK_STRUCTURE`], whose types have commas of their own.
fn columns() -> impl Iterator<Item = &'static str> {
    CLICK_STRUCTURE.split(", ").filter(|part| !part.starts_with('\'')).filter_map(|part| {
        let (name, _) = part.split_once(' ')?;
        Some(name)
    })
}

fn list(items: impl Iterator<Item = impl fmt::Display>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

async fn in_time<T>(
    statement: impl Future<Output = Result<T, clickhouse::error::Error>>,
) -> Result<T, StoreError> {
    within(TIMEOUT, statement).await
}

/// Waits for a statement's result, but not for ever.
pub(crate) async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, clickhouse::error::Error>>,
) -> Result<T, StoreError> {
    Ok(timeout(limit, statement).await.map_err(|_| StoreError::Timeout(limit))??)
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
