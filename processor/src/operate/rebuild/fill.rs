//! Reads a range of the log again and applies the same rules as a lane.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use chrono::NaiveDate;
use rdkafka::message::BorrowedMessage;
use schemas::row::ClickRow;
use tokio::sync::mpsc::Receiver;

use super::store::Staging;
use super::{Range, Rebuild, RebuildError};
use crate::clickhouse::InsertError;
use crate::operate::applied_recounts::AppliedRecounts;
use crate::operate::reading::{Part, ReadError, read};
use crate::pipeline::batch::{Batch, BatchRow, Batcher};
use crate::pipeline::decode::{Record, decode};
use crate::pipeline::deleted_links::DeletedLinks;
use crate::pipeline::repeats::{self, Dropped, RecentIds};

/// Minimum time between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Attempts to fence a source and insert its missing rows.
const ATTEMPTS: usize = 20;

/// The clicks that one reading of the log stores.
///
/// A possible repeat may have its first copy in any range, also of another shard, so the possible repeats of all ranges
/// come after the first copies of all ranges.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    FirstCopies,
    PossibleRepeats,
}

impl Pass {
    fn leaves_out(self, row: BatchRow<'_>) -> bool {
        row.is_possible_repeat() == (self == Self::FirstCopies)
    }

    /// Lets `read` read all ranges, and then again those of which it returned that they have possible repeats.
    async fn both(
        ranges: &[Range],
        mut read: impl AsyncFnMut(Self, &Range) -> Result<bool, RebuildError>,
    ) -> Result<(), RebuildError> {
        let mut with_repeats = Vec::new();
        for range in ranges {
            if read(Self::FirstCopies, range).await? {
                with_repeats.push(range);
            }
        }
        for range in with_repeats {
            read(Self::PossibleRepeats, range).await?;
        }
        Ok(())
    }
}

impl Rebuild<'_> {
    /// Reads the clicks of a day among some ranges into the staging tables.
    pub(super) async fn fill(&self, day: NaiveDate, ranges: &[Range]) -> Result<(), RebuildError> {
        Pass::both(ranges, async |pass, range| self.fill_from(range, day, pass).await).await
    }

    /// Returns whether the range has possible repeats of this day.
    async fn fill_from(&self, range: &Range, day: NaiveDate, pass: Pass) -> Result<bool, RebuildError> {
        let Range { partition, src, from, .. } = *range;
        let staging = self.staging_of(range)?;
        let mut filling = Filling {
            stagings: &self.stagings,
            staging,
            day,
            pass,
            recent_ids: RecentIds::default(),
            kept: HashSet::new(),
            deleted_links: DeletedLinks::default(),
        };
        for (of, koff, click_id, broker_ts) in staging.possible_repeats(day, partition).await? {
            if (of, koff) < (src, from) {
                filling.recent_ids.admit(&click_id, broker_ts);
            }
            filling.kept.insert(click_id);
        }
        let recounts = self.recounts.get_or_try_init(|| AppliedRecounts::read(&staging.statements)).await?;
        let mut has_possible_repeats = false;
        let mut batcher = Batcher::new(self.config.batch);
        let mut log = self.open(range).await?;
        while let Some(clicks) = log.next().await? {
            for mut row in clicks {
                if row.broker_ts.date_naive() != day {
                    continue;
                }
                has_possible_repeats |= row.click.again;
                recounts.apply(&mut row);
                if batcher.is_full(1) {
                    filling.store(batcher.cut()).await?;
                }
                batcher.push(&row);
            }
        }
        filling.store(batcher.cut()).await?;
        self.check_still_complete(range).await?;
        Ok(has_possible_repeats)
    }

    /// Inserts the missing rows of some ranges, except those of some days; returns the number of rows and their days.
    pub(super) async fn add_missing(
        &self,
        ranges: &[Range],
        except: &BTreeSet<NaiveDate>,
        first_day: NaiveDate,
    ) -> Result<(usize, BTreeSet<NaiveDate>), RebuildError> {
        let (mut rows, mut days) = (0, BTreeSet::new());
        Pass::both(ranges, async |pass, range| {
            let staging = self.staging_of(range)?;
            let possible_repeats = staging.possible_repeats_since(first_day, range.partition).await?;
            let mut adding = Adding {
                staging,
                range,
                pass,
                possible_repeats: possible_repeats.into_iter().collect(),
                deleted_links: DeletedLinks::default(),
                rows: 0,
                days: BTreeSet::new(),
            };
            let has_possible_repeats = self.add_from(&mut adding, except).await?;
            rows += adding.rows;
            days.extend(adding.days);
            Ok(has_possible_repeats)
        })
        .await?;
        Ok((rows, days))
    }

    /// Returns whether the range has possible repeats, except those of some days.
    async fn add_from(
        &self,
        adding: &mut Adding<'_>,
        except: &BTreeSet<NaiveDate>,
    ) -> Result<bool, RebuildError> {
        let mut has_possible_repeats = false;
        let mut batcher = Batcher::new(self.config.batch);
        let mut log = self.open(adding.range).await?;
        while let Some(clicks) = log.next().await? {
            for row in clicks {
                if except.contains(&row.broker_ts.date_naive()) {
                    continue;
                }
                has_possible_repeats |= row.click.again;
                if batcher.is_full(1) || !batcher.accepts(&row) {
                    adding.add(batcher.cut()).await?;
                }
                batcher.push(&row);
            }
        }
        adding.add(batcher.cut()).await?;
        self.check_still_complete(adding.range).await?;
        Ok(has_possible_repeats)
    }

    /// Starts reading a range of the log.
    async fn open(&self, range: &Range) -> Result<Clicks, RebuildError> {
        self.check_log(range).await?;
        let Range { partition, src, from, to, .. } = *range;
        let part = Part { topic: self.log.topic().into(), partition, offsets: from..to };
        // Invalid records already have dead letters.
        let take = move |message: &BorrowedMessage<'_>| decode(src, &Record::of(message)).ok();
        let chunks = read(&self.config.kafka, part, take);
        let now = Instant::now();
        Ok(Clicks { chunks, partition, offsets: to - from, read: 0, began: now, logged_at: now })
    }

    /// Checks that the range belongs to the current log and not to one that was replaced or truncated.
    async fn check_log(&self, range: &Range) -> Result<(), RebuildError> {
        let Range { partition, src, to, .. } = *range;
        let sources = self.store.sources().await?;
        // The topic's id first: a replaced topic has no source of its own before it is adopted.
        let topic_id = sources.last(partition).map(|source| source.topic_id);
        if topic_id == Some(self.log.topic_id().await?) && sources.own(src).is_some_and(|own| to <= own.end) {
            Ok(())
        } else {
            Err(RebuildError::FormerLog { partition })
        }
    }

    /// Checks that the whole range was read: the log was neither replaced nor shortened by retention meanwhile.
    async fn check_still_complete(&self, range: &Range) -> Result<(), RebuildError> {
        let Range { partition, from, .. } = *range;
        self.check_log(range).await?;
        let start = self.log.extent(partition).await?.start;
        if start > from { Err(RebuildError::LogBegins { partition, from, start }) } else { Ok(()) }
    }
}

/// The clicks of a range of the log, as they are read.
struct Clicks {
    chunks: Receiver<Result<Vec<Option<ClickRow>>, ReadError>>,
    partition: i32,
    offsets: u64,
    read: u64,
    began: Instant,
    logged_at: Instant,
}

impl Clicks {
    async fn next(&mut self) -> Result<Option<impl Iterator<Item = ClickRow> + use<>>, RebuildError> {
        let Some(chunk) = self.chunks.recv().await.transpose()? else { return Ok(None) };
        self.read += chunk.len() as u64;
        if self.logged_at.elapsed() >= PROGRESS_INTERVAL {
            self.logged_at = Instant::now();
            let Self { partition, read, .. } = *self;
            let per_second = read as f64 / self.began.elapsed().as_secs_f64();
            let left = self.offsets.saturating_sub(read);
            tracing::info!(
                partition,
                read,
                left,
                per_second,
                "partition {partition}: read {read}, {left} left, {per_second:.0} a second"
            );
        }
        Ok(Some(chunk.into_iter().flatten()))
    }
}

/// Fills the staging table of a shard with a day's clicks.
struct Filling<'a> {
    /// Of all shards.
    stagings: &'a [Staging],
    staging: &'a Staging,
    day: NaiveDate,
    pass: Pass,
    /// In the first pass also the ids that the second one may store.
    recent_ids: RecentIds,
    /// Possible repeats that stay stored; each may count in place of a lost first copy.
    kept: HashSet<String>,
    deleted_links: DeletedLinks,
}

impl Filling<'_> {
    async fn store(&mut self, batch: Option<Batch>) -> Result<(), RebuildError> {
        let Some(batch) = batch else { return Ok(()) };
        let staging = self.staging;
        let store = &staging.store;
        self.deleted_links.refresh(store).await?;
        let mut stored = HashSet::new();
        if self.pass == Pass::PossibleRepeats {
            let asked = repeats::to_look_up(&batch, &self.recent_ids);
            let other_days = format!("toDate(broker_ts) != '{}'", self.day);
            stored = store.stored_where(&other_days, &asked).await?;
            for other in self.stagings {
                stored.extend(other.store.stored_in(other.table(), "1", &asked).await?);
            }
        }
        let repeats = repeats::find(&batch, &self.recent_ids, &stored);
        let repeats =
            with_all(&batch, repeats, |row| self.kept.contains(row.click_id()) || self.pass.leaves_out(row));
        let dropped = Dropped::new(&batch, &repeats, &self.deleted_links);
        if let Some(insertion) = batch.insertion(&dropped.indexes) {
            store.insert_staged(staging.table(), &insertion).await?;
        }
        for row in batch.rows().filter(|row| row.is_possible_repeat()) {
            self.recent_ids.admit(row.click_id(), row.broker_ts());
        }
        Ok(())
    }
}

/// Inserts missing rows of open and recently closed days.
struct Adding<'a> {
    staging: &'a Staging,
    range: &'a Range,
    pass: Pass,
    /// The stored clicks that are possible repeats; in the first pass also those that the second one may store.
    possible_repeats: HashSet<String>,
    deleted_links: DeletedLinks,
    rows: usize,
    days: BTreeSet<NaiveDate>,
}

impl Adding<'_> {
    async fn add(&mut self, batch: Option<Batch>) -> Result<(), RebuildError> {
        let Some(batch) = batch else { return Ok(()) };
        if batch.insertion(&self.not_missing(&batch).await?.indexes).is_some() {
            self.insert(&batch).await?;
        }
        let possible_repeats = batch.rows().filter(|row| row.is_possible_repeat());
        self.possible_repeats.extend(possible_repeats.map(|row| row.click_id().to_owned()));
        Ok(())
    }

    async fn insert(&mut self, batch: &Batch) -> Result<(), RebuildError> {
        let (src, partition) = (self.range.src, self.range.partition);
        let store = &self.staging.store;
        for _ in 0..ATTEMPTS {
            // Fenced: nothing is inserted meanwhile. The partition's owner takes over again at its next insert.
            let token = store.fence_on_all(src).await?;
            let dropped = self.not_missing(batch).await?;
            let Some(insertion) = batch.insertion(&dropped.indexes) else { return Ok(()) };
            match store.insert_missing(token, &insertion).await {
                Ok(()) => {
                    self.days.extend(batch.rows().next().map(|row| row.broker_ts().date_naive()));
                    self.rows += insertion.rows;
                    tracing::info!(partition, rows = insertion.rows, "added {} rows", insertion.rows);
                    return Ok(());
                }
                Err(InsertError::Fenced) => {
                    tracing::info!(partition, "a processor took over partition {partition}, trying again");
                }
                // The next attempt reads whether the rows were inserted.
                Err(InsertError::InDoubt(error)) => tracing::warn!(
                    partition,
                    "adding rows to partition {partition} failed, trying again: {error}"
                ),
            }
        }
        Err(RebuildError::NotAdded { partition })
    }

    /// Returns the rows of a batch that are stored already or must not be stored.
    async fn not_missing(&self, batch: &Batch) -> Result<Dropped, RebuildError> {
        let staging = self.staging;
        let store = &staging.store;
        self.deleted_links.refresh(store).await?;
        let none = RecentIds::default();
        let mut stored = HashSet::new();
        if self.pass == Pass::PossibleRepeats {
            stored = store.stored(&repeats::to_look_up(batch, &none)).await?;
        }
        let repeats = repeats::find(batch, &none, &stored);
        let first = batch.rows().next().map_or(0, BatchRow::koff);
        let there = staging.stored(self.range.src, first, batch.next()).await?;
        let not_missing = with_all(batch, repeats, |row| {
            there.contains(&row.koff())
                || self.possible_repeats.contains(row.click_id())
                || self.pass.leaves_out(row)
        });
        Ok(Dropped::new(batch, &not_missing, &self.deleted_links))
    }
}

/// Returns the places of the repeats and of the rows for which a condition holds, ascending.
fn with_all(batch: &Batch, repeats: Vec<usize>, holds: impl Fn(BatchRow<'_>) -> bool) -> Vec<usize> {
    let more = batch.rows().enumerate().filter(|(_, row)| holds(*row));
    let all: BTreeSet<usize> = more.map(|(place, _)| place).chain(repeats).collect();
    all.into_iter().collect()
}
