//! Takes a partition over, so that no other process can store its rows, and finds the position to continue at.
//!
//! Kafka's group decides which process should work on a partition, but does not stop a process that was thought dead.
//! The right to insert is therefore an epoch in ClickHouse, next to the rows that it guards:
//!
//! 1. write a higher epoch: from now on, inserts under an older one are rejected;
//! 2. wait until no insert that read the older one is running;
//! 3. read the partition's source and position, which no other process can change any more;
//! 4. compare the log with them.
//!
//! A log is identified by its topic's id and by its records. If the id differs, an operator decides. If the id is the
//! same but the record at the last stored row is not that row's click, the log was truncated (for example by a power
//! failure of a broker) and may have grown again. Then a new source begins after the last record that still exists.

use std::ops::Range;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use metrics::counter;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clickhouse::sources::{Source, Sources, first_source};
use crate::clickhouse::{FencingToken, InsertError, OLDER_INSERTS_INTERVAL, Position, Store, StoredRow};
use crate::pipeline::log::{Extent, Log, LogRecord};
use crate::pipeline::repeats::{MAX_RECENT_IDS, RECENT_PERIOD, RecentIds};
use crate::pipeline::retry::{Stopped, pause, until_done};

/// How long after a record was missing it is checked again before its log counts as truncated. A broker that has just
/// restarted or become the leader may show less than it has.
const RECHECK_DELAY: Duration = Duration::from_secs(5);

/// The right to insert rows of a source, and the position to continue at.
#[derive(Debug)]
pub struct Ownership {
    /// The tables, on a replica of the shard that has the source's clicks.
    pub store: Store,
    /// The token that each insert carries.
    pub token: FencingToken,
    /// Kafka's id of the topic.
    pub topic_id: Uuid,
    /// The position to continue at.
    pub position: Position,
    /// The time up to which the source's clicks are counted, as stored in ClickHouse.
    pub as_of: Option<DateTime<Utc>>,
    /// The possible repeats that were stored within the last hour.
    pub recent_ids: RecentIds,
}

/// The topic is not the one that the stored rows came from, so its offsets cannot be compared with theirs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "partition {partition} of topic {topic} is not the log that its stored clicks came from: Kafka's id of the topic \
     is {found}, and was {known}. Its clicks are neither counted nor lost; they wait in the topic. Restore the former \
     topic, or run `processor adopt-topic`: it keeps the stored clicks, and counts the new topic from its start"
)]
pub struct WrongLog {
    topic: String,
    partition: i32,
    known: Uuid,
    found: Uuid,
}

/// Why a partition was not taken over.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The lane was stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The partition must not be taken over.
    #[error(transparent)]
    WrongLog(#[from] WrongLog),
}

/// Takes one partition over, any number of times.
#[derive(Debug, Clone)]
pub struct Claim {
    partition: i32,
    store: Store,
    log: Log,
    stop: CancellationToken,
}

impl Claim {
    /// Creates a claim to a partition; `stop` ends every attempt.
    pub fn new(partition: i32, store: Store, log: Log, stop: CancellationToken) -> Self {
        Self { partition, store, log, stop }
    }

    /// Takes the partition over, and retries until both ClickHouse and Kafka have answered.
    ///
    /// # Errors
    /// [`TakeoverError::WrongLog`] when the topic was recreated or replaced.
    pub async fn take_over(&mut self) -> Result<Ownership, TakeoverError> {
        let (mut was_missing_before, mut has_begun) = (false, false);
        loop {
            let source = self.sources().await?.last(self.partition);
            self.choose_replica(source).await?;
            let Self { partition, store, log, stop } = &*self;
            let partition = *partition;
            let topic_id = until_done("ask for the topic's id", partition, stop, || log.topic_id()).await?;
            let src = source.map_or_else(|| first_source(partition), |source| source.src);
            let epoch =
                until_done("take the partition over", partition, stop, || store.raise_epoch(src)).await?;
            counter!("hopline_processor_takeovers_total").increment(1);
            self.wait_for_older_inserts(src, epoch).await?;
            let token = FencingToken { src, epoch };
            // Read after the epoch was raised: no other process can change the source without raising it again.
            let sources = self.sources().await?;
            if sources.last(partition) != source {
                continue;
            }
            let Some(source) = source else {
                self.pause_if_lost(has_begun, src).await?;
                let first_offset = self.extent().await?.start;
                let shard =
                    until_done("choose a shard", partition, stop, || store.shard_of_new(partition)).await?;
                let first = Source { src, topic_id, first_offset, shard };
                has_begun = self.begin(token, first, "the first log").await?;
                continue;
            };
            if source.topic_id != topic_id {
                let (topic, known) = (log.topic().to_owned(), source.topic_id);
                return Err(WrongLog { topic, partition, known, found: topic_id }.into());
            }
            let position =
                until_done("read the position", partition, stop, || store.position(source)).await?;
            let extent = self.extent().await?;
            if !self.still_has_position(&position, extent).await? {
                if !std::mem::replace(&mut was_missing_before, true) {
                    pause(RECHECK_DELAY, stop).await?;
                    continue;
                }
                self.pause_if_lost(has_begun, src).await?;
                let first_offset = self.agreed_end(&sources, extent).await?;
                has_begun = self.replace(token, source, first_offset, &position).await?;
                continue;
            }
            let progress = until_done("read the progress", partition, stop, || store.progress()).await?;
            let recent_ids = self.recent_ids(&position).await?;
            let next = position.next;
            tracing::info!(partition, src, epoch, next, "took partition {partition} over at offset {next}");
            let as_of = progress.get(&src).copied();
            return Ok(Ownership { store: store.clone(), token, topic_id, position, as_of, recent_ids });
        }
    }

    /// Changes to a replica that has all rows, of the shard that has those of a source.
    async fn choose_replica(&mut self, source: Option<Source>) -> Result<(), Stopped> {
        let Self { partition, store, stop, .. } = &*self;
        if let Some(Source { shard, .. }) = source {
            self.store = until_done("find the shard", *partition, stop, || store.of_shard(shard)).await?;
        }
        // A replica that lacks rows costs only more attempts: what it accepts does not depend on it.
        if let Err(error) = self.store.choose_complete(&["owners", "sources", "stretches", "clicks"]).await {
            let partition = self.partition;
            tracing::debug!(partition, %error, "no replica is known to have all rows: {error}");
        }
        Ok(())
    }

    /// Pauses when a source has begun and is not there: its beginning was lost with a replica, until an operator
    /// releases it.
    async fn pause_if_lost(&self, has_begun: bool, src: u32) -> Result<(), Stopped> {
        if has_begun {
            tracing::warn!(
                src,
                "another source cannot begin after source {src}; `processor release-source` may help"
            );
            pause(RECHECK_DELAY, &self.stop).await?;
        }
        Ok(())
    }

    /// Returns the first offset of the log.
    pub async fn log_start(&self) -> Result<u64, Stopped> {
        Ok(self.extent().await?.start)
    }

    /// Returns the topic's id as requested after a moment.
    pub async fn topic_id_since(&self, moment: Instant) -> Result<Uuid, Stopped> {
        let Self { partition, log, stop, .. } = self;
        until_done("ask for the topic's id", *partition, stop, || log.topic_id_since(moment)).await
    }

    async fn extent(&self) -> Result<Extent, Stopped> {
        let Self { partition, log, stop, .. } = self;
        until_done("read the log's offsets", *partition, stop, || log.extent(*partition)).await
    }

    async fn sources(&self) -> Result<Sources, Stopped> {
        let Self { partition, store, stop, .. } = self;
        until_done("read the sources", *partition, stop, || store.sources()).await
    }

    async fn wait_for_older_inserts(&self, src: u32, epoch: u64) -> Result<(), Stopped> {
        let Self { partition, store, stop, .. } = self;
        let mut is_logged = false;
        loop {
            let running =
                until_done("look for older inserts", *partition, stop, || store.older_inserts(src, epoch))
                    .await?;
            if running == 0 {
                return Ok(());
            }
            if !std::mem::replace(&mut is_logged, true) {
                tracing::info!(partition, running, "waiting for {running} inserts of a former owner to end");
            }
            pause(OLDER_INSERTS_INTERVAL, stop).await?;
        }
    }

    /// Returns whether the record before the position still is the one that was processed.
    async fn still_has_position(&self, position: &Position, extent: Extent) -> Result<bool, Stopped> {
        if position.next > extent.end {
            return Ok(false);
        }
        if let Some(stretch) = position.stretch {
            let Some(broker_ts) = stretch.broker_ts else { return Ok(true) };
            let Some(found) = self.record(stretch.next - 1, extent).await? else { return Ok(true) };
            return Ok(found.broker_ts == Some(broker_ts));
        }
        match &position.last_row {
            Some(row) => self.is_click_of(row, extent).await,
            None => Ok(true),
        }
    }

    /// Returns whether the record of a row is its click, or was removed by retention.
    async fn is_click_of(&self, row: &StoredRow, extent: Extent) -> Result<bool, Stopped> {
        let found = self.record(row.koff, extent).await?;
        Ok(found.is_none_or(|found| found.click_id.as_deref() == Some(&row.click_id)))
    }

    /// Returns the record at an offset: an empty one if the log has none there, and `None` before the log's start.
    async fn record(&self, offset: u64, extent: Extent) -> Result<Option<LogRecord>, Stopped> {
        let Self { partition, log, stop, .. } = self;
        if offset < extent.start {
            return Ok(None);
        }
        let nothing = LogRecord { click_id: None, broker_ts: None };
        if offset >= extent.end {
            return Ok(Some(nothing));
        }
        let found = until_done("read a record", *partition, stop, || log.record(*partition, offset)).await?;
        Ok(Some(found.unwrap_or(nothing)))
    }

    /// Returns the offset after the last stored row, of any source of this topic, whose record the log still has.
    async fn agreed_end(&self, sources: &Sources, extent: Extent) -> Result<u64, Stopped> {
        for (source, own) in sources.of_topic(self.partition) {
            let own = own.start.max(extent.start)..own.end.min(extent.end);
            if let Some(row) = self.last_matching_row(source, own, extent).await? {
                return Ok(row.koff + 1);
            }
        }
        Ok(extent.start)
    }

    /// Finds the last row of a source within a range of offsets whose record the log still has.
    ///
    /// A log loses records only at its end, so all rows up to that one still have their record, and all later rows do
    /// not. This allows a binary search.
    async fn last_matching_row(
        &self,
        source: Source,
        own: Range<u64>,
        extent: Extent,
    ) -> Result<Option<StoredRow>, Stopped> {
        let Self { partition, store, stop, .. } = self;
        let mut matching: Option<StoredRow> = None;
        let (mut above, mut below) = (own.start.checked_sub(1), own.end);
        loop {
            let start = above.map_or(0, |above| above + 1);
            if start >= below {
                return Ok(matching);
            }
            let near = start + (below - start) / 2;
            let row = until_done("read a stored row", *partition, stop, || {
                store.row_near(source.src, (above, below), near)
            })
            .await?;
            let Some(row) = row else { return Ok(matching) };
            if self.is_click_of(&row, extent).await? {
                above = Some(row.koff);
                matching = Some(row);
            } else {
                below = row.koff;
            }
        }
    }

    /// Begins a new source after the remaining records of a truncated log.
    async fn replace(
        &self,
        token: FencingToken,
        source: Source,
        first_offset: u64,
        position: &Position,
    ) -> Result<bool, Stopped> {
        let partition = self.partition;
        let lost = position.next - first_offset.min(position.next);
        let reason = format!(
            "truncated at offset {first_offset}, when everything before {} was processed",
            position.next
        );
        counter!("hopline_processor_logs_cut_total").increment(1);
        tracing::error!(
            partition,
            first_offset,
            lost,
            "the log of partition {partition} was truncated: it lost {lost} offsets from {first_offset} on. Their \
             clicks stay counted; new records at these offsets are counted as a new source"
        );
        let Some(src) = source.next_src() else {
            // Takes 65,000 truncations of one partition.
            tracing::error!(partition, "partition {partition} has used all numbers of sources");
            self.stop.cancelled().await;
            return Err(Stopped);
        };
        self.begin(token, Source { src, first_offset, ..source }, &reason).await
    }

    /// Begins a source; returns false when another process has taken over since.
    async fn begin(&self, token: FencingToken, source: Source, reason: &str) -> Result<bool, Stopped> {
        let Self { partition, store, stop, .. } = self;
        until_done("begin a source", *partition, stop, || async {
            match store.begin(token, source, reason).await {
                Ok(()) => Ok(true),
                Err(InsertError::Fenced) => Ok(false),
                Err(InsertError::InDoubt(error)) => Err(error),
            }
        })
        .await
    }

    /// Loads the possible repeats of the hour before the last row, because their first copies may still arrive.
    async fn recent_ids(&self, position: &Position) -> Result<RecentIds, Stopped> {
        let Self { partition, store, stop, .. } = self;
        // Without a row, the clock of this process is used.
        let last = position.last_row.as_ref().and_then(StoredRow::broker_ts);
        let since = last.unwrap_or_else(Utc::now) - RECENT_PERIOD;
        let possible_repeats =
            until_done("read the possible repeats of the last hour", *partition, stop, || {
                store.possible_repeats_since(*partition, since, MAX_RECENT_IDS)
            })
            .await?;
        let mut recent_ids = RecentIds::default();
        for (click_id, broker_ts) in possible_repeats {
            recent_ids.admit(&click_id, broker_ts);
        }
        Ok(recent_ids)
    }
}
