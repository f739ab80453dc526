//! Rebuilds days of clicks, from the log or from their own rows under new rules.
//!
//! A day that was closed at least an hour ago is assembled in a staging table: the rows to keep, and the log's clicks
//! of the replayed ranges. One statement then replaces the day's partition, and the slice is closed again under a new
//! version. Reports read closed days from the rollups, so they change once, when that version becomes active. Open and
//! recently closed days only get their missing rows, inserted under a new epoch of each source.
//!
//! A staging table belongs to one attempt. A new rebuild drops the tables of earlier ones, so their late statements
//! fail. After a kill, finished days stay finished. If a day's rows were replaced but its slice was not closed again,
//! upkeep notices the new blocks and closes it.

mod fill;
mod store;

use std::collections::BTreeSet;
use std::fmt;

use chrono::NaiveDate;
use serde::Serialize;
use tokio::sync::OnceCell;
use uuid::Uuid;

pub(crate) use self::store::Range;
use self::store::{Content, Staging};
use super::applied_recounts::AppliedRecounts;
use super::reading::ReadError;
use crate::Config;
use crate::clickhouse::{Store, StoreError};
use crate::pipeline::log::{Log, LogError};
use crate::upkeep::{self, UpkeepError, UpkeepStore};

/// Attempts to rebuild a day that gets new clicks meanwhile.
const ATTEMPTS: usize = 3;

/// Why a day was not rebuilt. The days before it are done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RebuildError {
    #[error("ClickHouse failed, perhaps because another replay or recount has started")]
    Store(#[from] StoreError),
    #[error("Kafka did not answer")]
    Log(#[from] LogError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the rollups could not be computed")]
    Upkeep(#[from] UpkeepError),
    #[error(
        "partition {partition}: the log starts at offset {start}, so the records from offset {from} are gone"
    )]
    LogBegins { partition: i32, from: u64, start: u64 },
    #[error("partition {partition}: the log was replaced or truncated, so the range cannot be read")]
    FormerLog { partition: i32 },
    #[error(
        "the staging table for {day} is wrong, nothing was replaced: {others} rows of other days, {doubled} positions \
         with several rows"
    )]
    Unequal { day: NaiveDate, others: u64, doubled: u64 },
    #[error("CLICKHOUSE_URL names no replica of shard {shard}, which has the rows of source {src}")]
    NoShard { src: u32, shard: u16 },
    #[error("{day} got new clicks during each of {ATTEMPTS} attempts; run it again")]
    Changed { day: NaiveDate },
    #[error(
        "a processor took over partition {partition} during each attempt to add its missing rows; run it again"
    )]
    NotAdded { partition: i32 },
}

/// The result for one day.
#[derive(Debug, Serialize)]
pub(crate) struct Rebuilt {
    pub(crate) day: NaiveDate,
    /// How many clicks it had and has now, without those of deleted links.
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// Whether any row changed.
    pub(crate) changed: bool,
}

impl fmt::Display for Rebuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { day, before, after, changed } = self;
        if *changed {
            write!(f, "{day}: {after} clicks, before {before}")
        } else {
            write!(f, "{day}: {after} clicks, unchanged")
        }
    }
}

/// Rebuilds days.
pub(crate) struct Rebuild<'a> {
    config: &'a Config,
    store: Store,
    upkeep: UpkeepStore,
    log: Log,
    /// Of each shard.
    stagings: Vec<Staging>,
    /// Set when the log is first read.
    recounts: OnceCell<AppliedRecounts>,
}

impl<'a> Rebuild<'a> {
    /// Starts a rebuild and stops any other one.
    pub(crate) async fn begin(config: &'a Config, store: Store, log: Log) -> Result<Self, RebuildError> {
        let mut stagings = Vec::new();
        for store in store.each_shard().await? {
            stagings.push(Staging::new(store).await?);
        }
        Ok(Self { config, store, upkeep: config.upkeep_store(), log, stagings, recounts: OnceCell::new() })
    }

    /// Removes the staging tables.
    pub(crate) async fn end(self) -> Result<(), RebuildError> {
        for staging in self.stagings {
            staging.drop().await?;
        }
        Ok(())
    }

    /// Rebuilds a day: the ranges from the log, all other rows from the table with the changes of a recount.
    pub(crate) async fn day(
        &self,
        day: NaiveDate,
        ranges: &[Range],
        recount: Option<Uuid>,
        reason: &str,
    ) -> Result<Rebuilt, RebuildError> {
        for _ in 0..ATTEMPTS {
            let block = self.last_block(day).await?;
            let (mut staged, mut stored, mut behind) =
                (Content::default(), Content::default(), format!("toDate(broker_ts) = '{day}'"));
            // All first: a range may have repeats of clicks of another shard.
            for staging in &self.stagings {
                staging.keep(day, ranges, recount).await?;
            }
            self.fill(day, ranges).await?;
            for staging in &self.stagings {
                let (others, doubled) = staging.unexpected_rows(day).await?;
                if others + doubled > 0 {
                    return Err(RebuildError::Unequal { day, others, doubled });
                }
                let (there, before) = staging.contents(day).await?;
                (staged, stored) = (staged.and(there), stored.and(before));
                for (src, koff) in staging.ends().await? {
                    behind += &format!(" AND NOT (src = {src} AND koff <= {koff})");
                }
            }
            let rebuilt = Rebuilt { day, before: stored.rows, after: staged.rows, changed: staged != stored };
            if rebuilt.changed {
                for staging in &self.stagings {
                    staging.note(day, reason, recount).await?;
                }
                self.upkeep.keep_positions(&behind).await?;
                if self.last_block(day).await? != block {
                    tracing::info!(%day, "{day} got new clicks meanwhile, rebuilding it once more");
                    continue;
                }
                for staging in &self.stagings {
                    staging.replace(day).await?;
                }
                for staging in &self.stagings {
                    staging.remove_deleted(day).await?;
                }
            }
            self.close_again(day).await?;
            tracing::info!(%day, "rebuilt {rebuilt}");
            return Ok(rebuilt);
        }
        Err(RebuildError::Changed { day })
    }

    /// Inserts the missing rows of some ranges, except those of some days; returns how many.
    pub(crate) async fn complete(
        &self,
        ranges: &[Range],
        except: &BTreeSet<NaiveDate>,
        first_day: NaiveDate,
    ) -> Result<usize, RebuildError> {
        let (rows, days) = self.add_missing(ranges, except, first_day).await?;
        for day in days {
            self.close_again(day).await?;
        }
        Ok(rows)
    }

    /// Returns the staging table for the rows of a range.
    fn staging_of(&self, range: &Range) -> Result<&Staging, RebuildError> {
        let (src, shard) = (range.src, range.shard);
        let staging = self.stagings.iter().find(|staging| staging.has(range));
        staging.ok_or(RebuildError::NoShard { src, shard })
    }

    async fn last_block(&self, day: NaiveDate) -> Result<Option<i64>, StoreError> {
        self.upkeep.sync().await?;
        Ok(self.upkeep.last_blocks().await?.get(&day).copied())
    }

    async fn close_again(&self, day: NaiveDate) -> Result<(), UpkeepError> {
        upkeep::close_again(&self.store, &self.upkeep, day, upkeep::When::Changed).await
    }
}
