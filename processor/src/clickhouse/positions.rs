//! The position of each source, which only ClickHouse stores.
//!
//! A source continues after its last row and after the processed stretches without rows that follow it. Offsets
//! committed to Kafka are only for monitoring: after ClickHouse was restored from a backup, counting continues where
//! the backup ends.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use clickhouse::Row;
use serde::Deserialize;
use service::clickhouse::Clickhouse;
use uuid::Uuid;

use super::{FencingToken, InsertError, Store, StoreError, in_time, list, outcome_of};
use crate::clickhouse::sources::{Source, Sources};

/// A stored row, with the click id that identifies its record.
#[derive(Debug, Clone, PartialEq, Eq, Row, Deserialize)]
pub struct StoredRow {
    /// Its offset.
    pub koff: u64,
    /// Its click's id.
    pub click_id: String,
    /// The broker's time of the row, in milliseconds.
    pub millis: i64,
}

impl StoredRow {
    /// Returns the broker's time of the row.
    pub fn broker_ts(&self) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp_millis(self.millis)
    }
}

/// A processed stretch of a source that has no rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Its first offset: a source that is processed up to here is processed up to `next`.
    pub first: u64,
    /// The offset after it.
    pub next: u64,
    /// The broker's time of the record before `next`, if it had one.
    pub broker_ts: Option<DateTime<Utc>>,
    /// The offset after the last row before `next`, also when that row has been removed since; 0 when there was none.
    pub rows_end: u64,
}

/// How far a source is processed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Everything below this offset is processed.
    pub next: u64,
    /// The last stored row.
    pub last_row: Option<StoredRow>,
    /// The offset of the last row that was ever stored, also when it has been removed since.
    pub last_koff: Option<u64>,
    /// The stretch without rows that ends at `next`, if any.
    pub stretch: Option<Stretch>,
}

impl Position {
    /// Computes the position from the last row and the stretches, which are ordered by their first offset.
    fn of(source: Source, last_row: Option<StoredRow>, stretches: &[Stretch]) -> Self {
        let mut next = last_row.as_ref().map_or(source.first_offset, |row| row.koff + 1);
        let mut last = None;
        for stretch in stretches {
            // A stretch that begins later follows rows that are missing: ClickHouse was restored from an older backup
            // of them.
            if stretch.first <= next && stretch.next > next {
                next = stretch.next;
                last = Some(*stretch);
            }
        }
        // Rows beyond `next` are missing here, so what follows them is not known either.
        let ends = stretches.iter().map(|stretch| stretch.rows_end).filter(|end| *end <= next);
        let removed = ends.max().and_then(|end| end.checked_sub(1));
        let last_koff = last_row.as_ref().map(|row| row.koff).max(removed);
        Self { next, last_row, last_koff, stretch: last }
    }

    /// Returns the first offset of a stretch without rows that continues at `next`.
    pub fn stretch_begins(&self) -> u64 {
        self.stretch.map_or(self.next, |stretch| stretch.first)
    }
}

/// The time up to which the clicks of a source are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The source.
    pub src: u32,
    /// The time, by the broker's clock.
    pub as_of: DateTime<Utc>,
    /// The time that the table is known to contain already.
    pub known: Option<DateTime<Utc>>,
}

#[derive(Row, Deserialize)]
struct SourceRow {
    src: u32,
    #[serde(with = "clickhouse::serde::uuid")]
    topic_id: Uuid,
    first_offset: u64,
    shard: u16,
}

impl Store {
    /// Returns all sources.
    ///
    /// A source begins under a raised epoch of the previous one, and a takeover waits for that statement as it waits
    /// for inserts. So the holder of the highest epoch reads a result that cannot change.
    pub async fn sources(&self) -> Result<Sources, StoreError> {
        let query = self.client.query("SELECT src, topic_id, first_offset, shard FROM sources");
        let rows: Vec<SourceRow> = in_time(query.fetch_all()).await?;
        let source =
            |SourceRow { src, topic_id, first_offset, shard }| Source { src, topic_id, first_offset, shard };
        Ok(rows.into_iter().map(source).collect())
    }

    /// Begins a source of a partition, which ends the previous one.
    ///
    /// `token` is for the previous source, or for the new one when it is the first. Repeating this has no effect.
    ///
    /// # Errors
    /// [`InsertError::Fenced`] when another process has taken over the partition since.
    pub async fn begin(&self, token: FencingToken, source: Source, reason: &str) -> Result<(), InsertError> {
        // The progress of the previous source applies to this one too, which has no older clicks.
        let progress = self
            .client
            .query(
                "INSERT INTO progress (src, as_of) SELECT ?, max(as_of) FROM progress WHERE src = ? \
                HAVING count() > 0",
            )
            .bind(source.src)
            .bind(token.src)
            .with_setting("async_insert", "0");
        in_time(progress.execute()).await.map_err(InsertError::InDoubt)?;
        let insert = self
            .client
            .query(&format!(
                "INSERT INTO sources (src, topic_id, first_offset, shard, at, reason) \
                 SELECT ?, toUUID(?), ?, ?, now64(3), ? WHERE {}",
                token.guard()
            ))
            .bind(source.src)
            .bind(source.topic_id.to_string())
            .bind(source.first_offset)
            .bind(source.shard)
            .bind(reason)
            .with_setting("query_id", token.statement_id())
            .with_setting("async_insert", "0");
        outcome_of(in_time(self.once(insert, &format!("source-{}", source.src)).execute()).await)
    }

    /// Returns the position of a source.
    pub async fn position(&self, source: Source) -> Result<Position, StoreError> {
        let client = self.client.of_shard(source.shard).await?;
        let last_row = last_row(&client, source.src).await?;
        let query = client
            .query(
                "SELECT first, max(next), toUnixTimestamp64Milli(argMax(broker_ts, next)), max(rows_end) \
                 FROM stretches WHERE src = ? GROUP BY first ORDER BY first",
            )
            .bind(source.src);
        let stretches: Vec<(u64, u64, i64, u64)> = in_time(query.fetch_all()).await?;
        let stretch = |(first, next, millis, rows_end): (u64, u64, i64, u64)| {
            let broker_ts = DateTime::from_timestamp_millis(millis).filter(|_| millis > 0);
            Stretch { first, next, broker_ts, rows_end }
        };
        let stretches: Vec<Stretch> = stretches.into_iter().map(stretch).collect();
        Ok(Position::of(source, last_row, &stretches))
    }

    /// Returns the position of a partition in its current source; `None` when it has no source yet.
    pub async fn position_of(
        &self,
        sources: &Sources,
        partition: i32,
    ) -> Result<Option<Position>, StoreError> {
        match sources.last(partition) {
            Some(source) => self.position(source).await.map(Some),
            None => Ok(None),
        }
    }

    /// Finds a row of a source between two offsets, both exclusive: the last one up to `near`, or else the first one
    /// after it.
    pub async fn row_near(
        &self,
        src: u32,
        (above, below): (Option<u64>, u64),
        near: u64,
    ) -> Result<Option<StoredRow>, StoreError> {
        let query = self
            .client
            .query(
                "SELECT koff, click_id, toUnixTimestamp64Milli(broker_ts) AS millis FROM clicks \
                 WHERE src = ? AND koff >= ? AND koff < ? ORDER BY koff > ?, if(koff > ?, koff - ?, ? - koff) LIMIT 1",
            )
            .bind(src)
            .bind(above.map_or(0, |above| above + 1))
            .bind(below)
            .bind(near)
            .bind(near)
            .bind(near)
            .bind(near);
        in_time(query.fetch_optional()).await
    }

    /// Records that a stretch of a source is processed and has no rows.
    ///
    /// # Errors
    /// [`InsertError::Fenced`] when another process owns the source.
    pub async fn insert_stretch(&self, token: FencingToken, stretch: Stretch) -> Result<(), InsertError> {
        let insert = self
            .client
            .query(&format!(
                "INSERT INTO stretches (src, first, next, broker_ts, rows_end) \
                 SELECT ?, ?, ?, fromUnixTimestamp64Milli(?, 'UTC'), ? WHERE {}",
                token.guard()
            ))
            .bind(token.src)
            .bind(stretch.first)
            .bind(stretch.next)
            .bind(stretch.broker_ts.map_or(0, |at| at.timestamp_millis()))
            .bind(stretch.rows_end)
            .with_setting("query_id", token.statement_id())
            .with_setting("async_insert", "0");
        outcome_of(in_time(insert.execute()).await)
    }

    /// Returns the time up to which the clicks of each source are counted, where known.
    pub async fn progress(&self) -> Result<BTreeMap<u32, DateTime<Utc>>, StoreError> {
        const SQL: &str = "SELECT src, toUnixTimestamp64Milli(max(as_of)) FROM progress GROUP BY src";
        let rows: Vec<(u32, i64)> = in_time(self.client.query(SQL).fetch_all()).await?;
        let counted = |(src, millis)| Some((src, DateTime::from_timestamp_millis(millis)?));
        Ok(rows.into_iter().filter_map(counted).collect())
    }

    /// Records the time up to which the clicks of each source are counted.
    ///
    /// A source is skipped when the table contains less than the known time, because the table is then an older copy.
    pub async fn write_progress(&self, counted: &[Progress]) -> Result<(), StoreError> {
        let rows = list(counted.iter().map(|Progress { src, as_of, known }| {
            let known = known.map_or(0, |known| known.timestamp_millis());
            format!("(toUInt32({src}), toInt64({}), toInt64({known}))", as_of.timestamp_millis())
        }));
        let sources = list(counted.iter().map(|counted| counted.src));
        let insert = self
            .client
            .query(&format!(
                "INSERT INTO progress (src, as_of) \
                 SELECT counted.1, fromUnixTimestamp64Milli(counted.2, 'UTC') \
                 FROM (SELECT arrayJoin([{rows}]) AS counted, counted.1 AS src) AS new \
                 LEFT JOIN (SELECT src, toUnixTimestamp64Milli(max(as_of)) AS until FROM progress \
                            WHERE src IN ({sources}) GROUP BY src) AS old USING src \
                 WHERE old.until >= counted.3"
            ))
            .with_setting("async_insert", "0");
        in_time(insert.execute()).await
    }
}

/// Finds the last row of a source.
async fn last_row(client: &Clickhouse, src: u32) -> Result<Option<StoredRow>, StoreError> {
    // Searches the last days first, which suffices for an active source. A row of the first of these days is no
    // proof: the row after it may be from the day before, by another broker's clock.
    let lately = "broker_ts >= now64(3) - INTERVAL 3 DAY";
    let proves = "broker_ts >= now64(3) - INTERVAL 2 DAY";
    for (among, proof) in [(lately, proves), ("1", "1")] {
        let sql = format!(
            "SELECT koff, click_id, toUnixTimestamp64Milli(broker_ts) AS millis FROM ( \
                 SELECT koff, click_id, broker_ts FROM clicks WHERE src = ? AND {among} ORDER BY koff DESC LIMIT 1 \
             ) WHERE {proof}"
        );
        let row = in_time(client.query(&sql).bind(src).fetch_optional()).await?;
        if row.is_some() {
            return Ok(row);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_continues_after_its_last_row_and_the_following_stretches() {
        let source = Source { src: 65_536, topic_id: Uuid::nil(), first_offset: 5, shard: 0 };
        let row = |koff| Some(StoredRow { koff, click_id: String::new(), millis: 0 });
        let stretch = |first, next| Stretch { first, next, broker_ts: None, rows_end: 0 };
        for (last_row, stretches, next, begins) in [
            (None, vec![], 5, 5),
            (None, vec![stretch(5, 9)], 9, 5),
            (row(9), vec![], 10, 10),
            (row(9), vec![stretch(10, 14), stretch(14, 20)], 20, 14),
            // Before the last row, or of rows that were removed since.
            (row(30), vec![stretch(10, 14)], 31, 31),
            (row(9), vec![stretch(0, 25)], 25, 0),
            // After rows that this copy of the table does not have.
            (row(9), vec![stretch(12, 14)], 10, 10),
        ] {
            let position = Position::of(source, last_row.clone(), &stretches);
            assert_eq!(
                (position.next, position.stretch_begins()),
                (next, begins),
                "{last_row:?} {stretches:?}"
            );
        }
    }

    #[test]
    fn a_removed_row_stays_the_last_one() {
        let source = Source { src: 65_536, topic_id: Uuid::nil(), first_offset: 0, shard: 0 };
        let row = Some(StoredRow { koff: 9, click_id: String::new(), millis: 0 });
        let removed = Stretch { first: 10, next: 20, broker_ts: None, rows_end: 20 };
        let dropped = Stretch { first: 20, next: 30, broker_ts: None, rows_end: 20 };
        let position = Position::of(source, row.clone(), &[removed, dropped]);
        assert_eq!((position.next, position.last_koff), (30, Some(19)));
        // The rows before the stretch have not arrived at this replica.
        let position = Position::of(source, row.clone(), &[dropped]);
        assert_eq!((position.next, position.last_koff), (10, Some(9)));
        assert_eq!(Position::of(source, row, &[]).last_koff, Some(9));
        assert_eq!(Position::of(source, None, &[]).last_koff, None);
    }
}
