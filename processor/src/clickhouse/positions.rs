//! How far each source is: ClickHouse alone says so.
//!
//! A source goes on behind its last row, and behind the stretches without rows that are known to be done. What Kafka has
//! as the group's committed offsets is for people who look; a ClickHouse that was restored from a copy goes on where that
//! copy ends.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use clickhouse::Row;
use serde::Deserialize;
use uuid::Uuid;

use super::{InsertError, Right, Store, StoreError, in_time, list, outcome_of};
use crate::clickhouse::sources::{Source, Sources};

/// A row, and the click by which its record is known.
#[derive(Debug, Clone, PartialEq, Eq, Row, Deserialize)]
pub struct StoredRow {
    /// Its offset.
    pub koff: u64,
    /// Its click.
    pub click_id: String,
    /// The broker's clock of the row, in milliseconds.
    pub millis: i64,
}

impl StoredRow {
    /// Returns the broker's clock of the row.
    pub fn broker_ts(&self) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp_millis(self.millis)
    }
}

/// A stretch of a source that is done and has no rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Its first offset; whoever is done up to there is done up to `next`.
    pub first: u64,
    /// The offset behind it.
    pub next: u64,
    /// The broker's time of the record before `next`, if it had one.
    pub broker_ts: Option<DateTime<Utc>>,
}

/// How far a source is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Everything below this offset is done.
    pub next: u64,
    /// The last stored row.
    pub last_row: Option<StoredRow>,
    /// The stretch without rows that ends at `next`, if one does.
    pub stretch: Option<Stretch>,
}

impl Position {
    /// Puts together how far a source is, of its last row and its stretches in the order of their beginnings.
    fn of(source: Source, last_row: Option<StoredRow>, stretches: &[Stretch]) -> Self {
        let mut next = last_row.as_ref().map_or(source.first_offset, |row| row.koff + 1);
        let mut last = None;
        for stretch in stretches {
            // One that begins later is of rows that are not here: ClickHouse was restored from an older copy of them.
            if stretch.first <= next && stretch.next > next {
                next = stretch.next;
                last = Some(*stretch);
            }
        }
        Self { next, last_row, stretch: last }
    }

    /// Returns where a stretch without rows that goes on at `next` begins.
    pub fn stretch_begins(&self) -> u64 {
        self.stretch.map_or(self.next, |stretch| stretch.first)
    }
}

/// Up to when the clicks of a source are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The source.
    pub src: u32,
    /// By the broker's clock.
    pub as_of: DateTime<Utc>,
    /// What the table is known to have of it already.
    pub known: Option<DateTime<Utc>>,
}

#[derive(Row, Deserialize)]
struct SourceRow {
    src: u32,
    #[serde(with = "clickhouse::serde::uuid")]
    topic_id: Uuid,
    first_offset: u64,
}

impl Store {
    /// Returns every log of every partition.
    ///
    /// A log begins under the raised epoch of the one before it, and its statement is waited for as the inserts of that
    /// one are: whoever reads this under an epoch that is still the highest has read what stands.
    pub async fn sources(&self) -> Result<Sources, StoreError> {
        let query = self.client.query("SELECT src, topic_id, first_offset FROM sources");
        let rows: Vec<SourceRow> = in_time(query.fetch_all()).await?;
        let source = |SourceRow { src, topic_id, first_offset }| Source { src, topic_id, first_offset };
        Ok(rows.into_iter().map(source).collect())
    }

    /// Begins a log of a partition, so that the one before it ends.
    ///
    /// `right` is of the log before it, or of the log itself when it is the first one. Doing it again does no harm.
    ///
    /// # Errors
    /// [`InsertError::Fenced`] when somebody has taken the partition since its epoch was raised.
    pub async fn begin(&self, right: Right, source: Source, reason: &str) -> Result<(), InsertError> {
        // What is said of the former log holds for this one, which has nothing older; so it is waited for from now on.
        let progress = self
            .client
            .query("INSERT INTO progress (src, as_of) SELECT ?, max(as_of) FROM progress WHERE src = ? HAVING count() > 0")
            .bind(source.src)
            .bind(right.src)
            .with_setting("async_insert", "0");
        in_time(progress.execute()).await.map_err(InsertError::Doubtful)?;
        let insert = self
            .client
            .query(&format!(
                "INSERT INTO sources (src, topic_id, first_offset, at, reason) \
                 SELECT ?, toUUID(?), ?, now64(3), ? WHERE {}",
                right.guard()
            ))
            .bind(source.src)
            .bind(source.topic_id.to_string())
            .bind(source.first_offset)
            .bind(reason)
            .with_setting("query_id", right.statement_id())
            .with_setting("async_insert", "0");
        outcome_of(in_time(insert.execute()).await)
    }

    /// Returns how far a source is.
    pub async fn position(&self, source: Source) -> Result<Position, StoreError> {
        let last_row = self.last_row(source.src).await?;
        let query = self
            .client
            .query(
                "SELECT first, max(next), toUnixTimestamp64Milli(argMax(broker_ts, next)) FROM stretches \
                 WHERE src = ? GROUP BY first ORDER BY first",
            )
            .bind(source.src);
        let stretches: Vec<(u64, u64, i64)> = in_time(query.fetch_all()).await?;
        let stretch = |(first, next, millis): (u64, u64, i64)| {
            let broker_ts = DateTime::from_timestamp_millis(millis).filter(|_| millis > 0);
            Stretch { first, next, broker_ts }
        };
        let stretches: Vec<Stretch> = stretches.into_iter().map(stretch).collect();
        Ok(Position::of(source, last_row, &stretches))
    }

    /// Returns how far a partition is with the log that it has; `None` before it had one.
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

    /// Finds the last row of a source.
    async fn last_row(&self, src: u32) -> Result<Option<StoredRow>, StoreError> {
        // The last days first, which is enough for a source that is at work. A row of the first of them proves nothing:
        // the one behind it may be of the day before, by another broker's clock.
        let lately = "broker_ts >= now64(3) - INTERVAL 3 DAY";
        let proves = "broker_ts >= now64(3) - INTERVAL 2 DAY";
        for (among, proof) in [(lately, proves), ("1", "1")] {
            let sql = format!(
                "SELECT koff, click_id, toUnixTimestamp64Milli(broker_ts) AS millis FROM ( \
                     SELECT koff, click_id, broker_ts FROM clicks WHERE src = ? AND {among} ORDER BY koff DESC LIMIT 1 \
                 ) WHERE {proof}"
            );
            let row = in_time(self.client.query(&sql).bind(src).fetch_optional()).await?;
            if row.is_some() {
                return Ok(row);
            }
        }
        Ok(None)
    }

    /// Finds, among the rows of a source between two offsets, both left out, the last one up to a third, or else the
    /// first one behind that.
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

    /// Records that a stretch of a source is done and has no rows.
    ///
    /// # Errors
    /// [`InsertError::Fenced`] when somebody else has the source.
    pub async fn insert_stretch(&self, right: Right, stretch: Stretch) -> Result<(), InsertError> {
        let insert = self
            .client
            .query(&format!(
                "INSERT INTO stretches (src, first, next, broker_ts) \
                 SELECT ?, ?, ?, fromUnixTimestamp64Milli(?, 'UTC') WHERE {}",
                right.guard()
            ))
            .bind(right.src)
            .bind(stretch.first)
            .bind(stretch.next)
            .bind(stretch.broker_ts.map_or(0, |at| at.timestamp_millis()))
            .with_setting("query_id", right.statement_id())
            .with_setting("async_insert", "0");
        outcome_of(in_time(insert.execute()).await)
    }

    /// Returns up to when the clicks of each source are counted, as far as somebody has said so.
    pub async fn progress(&self) -> Result<BTreeMap<u32, DateTime<Utc>>, StoreError> {
        const SQL: &str = "SELECT src, toUnixTimestamp64Milli(max(as_of)) FROM progress GROUP BY src";
        let rows: Vec<(u32, i64)> = in_time(self.client.query(SQL).fetch_all()).await?;
        let counted = |(src, millis)| Some((src, DateTime::from_timestamp_millis(millis)?));
        Ok(rows.into_iter().filter_map(counted).collect())
    }

    /// Records up to when the clicks of each source are counted.
    ///
    /// A source of which the table has less than is known is left out: it is not the table that was written to, but an
    /// older copy of it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_goes_on_behind_its_last_row_and_the_stretches_that_follow_it() {
        let source = Source { src: 65_536, topic_id: Uuid::nil(), first_offset: 5 };
        let row = |koff| Some(StoredRow { koff, click_id: String::new(), millis: 0 });
        let stretch = |first, next| Stretch { first, next, broker_ts: None };
        for (last_row, stretches, next, begins) in [
            (None, vec![], 5, 5),
            (None, vec![stretch(5, 9)], 9, 5),
            (row(9), vec![], 10, 10),
            (row(9), vec![stretch(10, 14), stretch(14, 20)], 20, 14),
            // Of before the last row, or of rows that are gone since.
            (row(30), vec![stretch(10, 14)], 31, 31),
            (row(9), vec![stretch(0, 25)], 25, 0),
            // Behind rows that this copy of the table does not have.
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
}
