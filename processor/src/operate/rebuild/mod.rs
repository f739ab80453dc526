//! Making days of clicks again: of the log, or of their own rows by other rules.
//!
//! A day that was closed an hour ago or longer is put together in a staging table that nobody reads: the rows that stay,
//! and those that the log has of the ranges that are read again. Then its rows take the place of the day's in one step,
//! and the slice is closed again under a new version. Reports read closed days from the rollups, so they change once, at
//! that. To the other days, what is missing is added, under an epoch of each source that lacks something.
//!
//! A staging table is of one attempt, and whoever begins removes those of others: a statement of one that was thought dead
//! finds its table gone. So there is no half of a rebuild. Killed anywhere, the days that are done are done; one whose rows
//! were replaced and whose slice was not closed again yet is closed again by upkeep, which sees blocks that came since.

mod fill;
mod staging;

use std::collections::BTreeSet;
use std::fmt;

use chrono::NaiveDate;
use serde::Serialize;
use service::clickhouse::client;
use tokio::sync::OnceCell;
use uuid::Uuid;

use self::staging::Staging;
use super::reading::ReadError;
use super::recount::applied::Applied;
use crate::Config;
use crate::clickhouse::{Store, StoreError};
use crate::pipeline::log::{Log, LogError};
use crate::upkeep::{self, UpkeepError};

/// How often a day is put together anew because clicks came to it meanwhile.
const ATTEMPTS: usize = 3;

/// Why a day was not made again. Those before it are done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RebuildError {
    #[error("ClickHouse did not do it, perhaps because another replay or recount has begun: {0}")]
    Store(#[from] StoreError),
    #[error("Kafka did not answer: {0}")]
    Log(#[from] LogError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the rollups could not be computed: {0}")]
    Upkeep(#[from] UpkeepError),
    #[error("the log no longer holds partition {partition} from offset {from}: it begins at {start}")]
    LogBegins { partition: i32, from: u64, start: u64 },
    #[error("the log of partition {partition} was replaced or cut meanwhile, and the range with it")]
    FormerLog { partition: i32 },
    #[error(
        "what was made of {day} is not what it must be, and nothing was replaced: {others} rows are of other days, {doubled} \
         positions have several rows"
    )]
    Unequal { day: NaiveDate, others: u64, doubled: u64 },
    #[error("clicks of {day} came in between at each of {ATTEMPTS} attempts")]
    Changed { day: NaiveDate },
    #[error("processors took partition {partition} at each attempt to add to it; run it again")]
    NotAdded { partition: i32 },
}

/// A range of a partition's offsets that is read from the log again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Range {
    pub(crate) partition: i32,
    pub(crate) src: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// What became of a day.
#[derive(Debug, Serialize)]
pub(crate) struct Rebuilt {
    pub(crate) day: NaiveDate,
    /// How many clicks it had, without those of deleted links, and has now.
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// Whether any of them is another one.
    pub(crate) changed: bool,
}

impl fmt::Display for Rebuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { day, before, after, changed } = self;
        if *changed {
            write!(f, "{day}: {after} clicks, it had {before}")
        } else {
            write!(f, "{day}: {after} clicks, all as they were")
        }
    }
}

/// Makes days again.
pub(crate) struct Rebuild<'a> {
    config: &'a Config,
    store: Store,
    upkeep: upkeep::Tables,
    log: Log,
    staging: Staging,
    /// What recounts have made of clicks, as soon as the log is read.
    recounts: OnceCell<Applied>,
}

impl<'a> Rebuild<'a> {
    /// Begins; who was at work on another one does nothing any more.
    pub(crate) async fn begin(config: &'a Config, store: Store, log: Log) -> Result<Self, RebuildError> {
        let staging = Staging::new(client(&config.clickhouse)).await?;
        Ok(Self { config, store, upkeep: config.tables(), log, staging, recounts: OnceCell::new() })
    }

    /// Ends, and removes what was of use only for this.
    pub(crate) async fn end(self) -> Result<(), RebuildError> {
        Ok(self.staging.drop().await?)
    }

    /// Makes a day again: of the log where the ranges reach, and of its own rows by what a recount has read.
    pub(crate) async fn day(
        &self,
        day: NaiveDate,
        ranges: &[Range],
        recount: Option<Uuid>,
        reason: &str,
    ) -> Result<Rebuilt, RebuildError> {
        for _ in 0..ATTEMPTS {
            let block = self.last_block(day).await?;
            self.staging.keep(day, ranges, recount).await?;
            for range in ranges {
                self.fill(day, range).await?;
            }
            self.staging.audit(day).await?;
            let (made, stored) = self.staging.contents(day).await?;
            let rebuilt = Rebuilt { day, before: stored.rows, after: made.rows, changed: made != stored };
            if rebuilt.changed {
                self.staging.note(day, reason, recount).await?;
                self.upkeep.keep_positions(&self.staging.is_behind(day).await?).await?;
                if self.last_block(day).await? != block {
                    tracing::info!(%day, "clicks of {day} came in between, making it once more");
                    continue;
                }
                self.staging.replace(day).await?;
            }
            self.close_again(day).await?;
            tracing::info!(%day, "made {rebuilt}");
            return Ok(rebuilt);
        }
        Err(RebuildError::Changed { day })
    }

    /// Adds what is missing among the rows of a range, but for those of some days; returns how many rows that is.
    pub(crate) async fn complete(
        &self,
        range: &Range,
        except: &BTreeSet<NaiveDate>,
        first_day: NaiveDate,
    ) -> Result<usize, RebuildError> {
        let (rows, days) = self.add_missing(range, except, first_day).await?;
        for day in days {
            self.close_again(day).await?;
        }
        Ok(rows)
    }

    async fn last_block(&self, day: NaiveDate) -> Result<Option<i64>, StoreError> {
        Ok(self.upkeep.last_blocks().await?.get(&day).copied())
    }

    async fn close_again(&self, day: NaiveDate) -> Result<(), UpkeepError> {
        upkeep::close_again(&self.store, &self.upkeep, day, upkeep::When::Changed).await
    }
}
