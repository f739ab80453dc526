//! Taking a partition, so that nobody else can store rows of it, and finding out where to go on.
//!
//! Kafka's group says who should work on a partition; it does not stop a process that was thought dead. So the
//! right to insert is an epoch in ClickHouse, next to the rows that it guards:
//!
//! 1. write a higher epoch: inserts under an older one are refused from now on;
//! 2. wait until no insert is running that read the older one;
//! 3. read which log the partition has, and how far it is: nothing can be added behind it any more;
//! 4. compare the log with it.
//!
//! A log is known by its topic's id and by its records. Where the id is another one, an operator decides. Where it is the
//! same, but the record of the last stored row is not that row's click, the log was cut, as by a power cut of a broker, and
//! may have grown again: then another log begins behind the last record that is still there.

use std::ops::Range;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use metrics::counter;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clickhouse::sources::{Source, Sources, first_source};
use crate::clickhouse::{InsertError, Position, Right, Store, StoredRow, WAIT_OUT_INTERVAL};
use crate::pipeline::log::{Extent, Found, Log};
use crate::pipeline::repeats::{MEMORY, MEMORY_IDS, Remembered};
use crate::pipeline::retry::{Stopped, pause, until_done};

/// How long after a record was missed it is looked for again before its log counts as cut: a broker that has just come
/// back, or become the leader, may show less than it has.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// The right to insert rows of a source, and where to go on.
#[derive(Debug)]
pub struct Ownership {
    /// What each insert carries.
    pub right: Right,
    /// Kafka's id of the topic.
    pub topic_id: Uuid,
    /// Where to go on.
    pub position: Position,
    /// Up to when the source's clicks are counted, as ClickHouse says.
    pub as_of: Option<DateTime<Utc>>,
    /// The marked clicks of the last hour.
    pub remembered: Remembered,
}

/// The topic is not the one that the stored rows came from, so positions in it mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "partition {partition} of topic {topic} is not the log that its stored clicks came from: Kafka's id of the topic is \
     {found}, and was {known}. Its clicks are neither counted nor lost; they wait in the topic. Bring the former topic \
     back, or run `processor adopt-topic`: it keeps what is counted, and clicks of the new topic are counted from its \
     start"
)]
pub struct WrongLog {
    topic: String,
    partition: i32,
    known: Uuid,
    found: Uuid,
}

/// Why a partition was not taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// It was given back meanwhile.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// It must not be taken.
    #[error(transparent)]
    WrongLog(#[from] WrongLog),
}

/// What is needed to take one partition, again and again.
#[derive(Debug, Clone)]
pub struct Claim {
    partition: i32,
    store: Store,
    log: Log,
    stop: CancellationToken,
}

impl Claim {
    /// Prepares to take a partition; `stop` ends every attempt.
    pub fn new(partition: i32, store: Store, log: Log, stop: CancellationToken) -> Self {
        Self { partition, store, log, stop }
    }

    /// Takes the partition, trying until both ClickHouse and Kafka have answered.
    ///
    /// # Errors
    /// [`TakeError::WrongLog`] when the topic was wiped or replaced.
    pub async fn take(&self) -> Result<Ownership, TakeError> {
        let Self { partition, store, log, stop } = self;
        let partition = *partition;
        let mut looked_before = false;
        loop {
            let topic_id = until_done("ask for the topic's id", partition, stop, || log.topic_id()).await?;
            let source = self.sources().await?.last(partition);
            let src = source.map_or_else(|| first_source(partition), |source| source.src);
            let epoch =
                until_done("take the partition over", partition, stop, || store.raise_epoch(src)).await?;
            counter!("hopline_processor_takeovers_total").increment(1);
            self.wait_out(src, epoch).await?;
            let right = Right { src, epoch };
            // Read behind the epoch: from here on nobody can end this log without raising it again.
            let sources = self.sources().await?;
            if sources.last(partition) != source {
                continue;
            }
            let Some(source) = source else {
                let extent = self.extent().await?;
                let first = Source { src, topic_id, first_offset: extent.start };
                self.begin(right, first, "the first log").await?;
                continue;
            };
            if source.topic_id != topic_id {
                let (topic, known) = (log.topic().to_owned(), source.topic_id);
                return Err(WrongLog { topic, partition, known, found: topic_id }.into());
            }
            let position =
                until_done("read how far the source is", partition, stop, || store.position(source)).await?;
            let extent = self.extent().await?;
            if !self.is_there(&position, extent).await? {
                if !std::mem::replace(&mut looked_before, true) {
                    pause(SECOND_LOOK, stop).await?;
                    continue;
                }
                let first_offset = self.agreed(&sources, extent).await?;
                self.replace(right, source, first_offset, &position).await?;
                continue;
            }
            let progress = until_done("read the progress", partition, stop, || store.progress()).await?;
            let remembered = self.remembered(&position).await?;
            let next = position.next;
            tracing::info!(partition, src, epoch, next, "took partition {partition} over at offset {next}");
            let as_of = progress.get(&src).copied();
            return Ok(Ownership { right, topic_id, position, as_of, remembered });
        }
    }

    /// Returns the first offset that the log holds.
    pub async fn log_start(&self) -> Result<u64, Stopped> {
        Ok(self.extent().await?.start)
    }

    /// Returns the topic's id as Kafka says it from now on.
    pub async fn topic_id_since(&self, moment: Instant) -> Result<Uuid, Stopped> {
        let Self { partition, log, stop, .. } = self;
        until_done("ask for the topic's id", *partition, stop, || log.topic_id_since(moment)).await
    }

    async fn extent(&self) -> Result<Extent, Stopped> {
        let Self { partition, log, stop, .. } = self;
        until_done("read the log's ends", *partition, stop, || log.extent(*partition)).await
    }

    async fn sources(&self) -> Result<Sources, Stopped> {
        let Self { partition, store, stop, .. } = self;
        until_done("read the partition's logs", *partition, stop, || store.sources()).await
    }

    async fn wait_out(&self, src: u32, epoch: u64) -> Result<(), Stopped> {
        let Self { partition, store, stop, .. } = self;
        let mut told = false;
        loop {
            let running =
                until_done("look for older inserts", *partition, stop, || store.older_inserts(src, epoch))
                    .await?;
            if running == 0 {
                return Ok(());
            }
            if !std::mem::replace(&mut told, true) {
                tracing::info!(partition, running, "waiting for {running} inserts of a former owner to end");
            }
            pause(WAIT_OUT_INTERVAL, stop).await?;
        }
    }

    /// Returns whether the log has the record before the position, as it was read.
    async fn is_there(&self, position: &Position, extent: Extent) -> Result<bool, Stopped> {
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

    /// Returns whether the record of a row is its click, or is gone by retention.
    async fn is_click_of(&self, row: &StoredRow, extent: Extent) -> Result<bool, Stopped> {
        let found = self.record(row.koff, extent).await?;
        Ok(found.is_none_or(|found| found.click_id.as_deref() == Some(&row.click_id)))
    }

    /// Returns the record of an offset; one that is nothing where the log has none; `None` for one before the log's start.
    async fn record(&self, offset: u64, extent: Extent) -> Result<Option<Found>, Stopped> {
        let Self { partition, log, stop, .. } = self;
        if offset < extent.start {
            return Ok(None);
        }
        let nothing = Found { click_id: None, broker_ts: None };
        if offset >= extent.end {
            return Ok(Some(nothing));
        }
        let found = until_done("read a record", *partition, stop, || log.record(*partition, offset)).await?;
        Ok(Some(found.unwrap_or(nothing)))
    }

    /// Returns the offset behind the last stored row whose record the log still has, of any log of this topic.
    async fn agreed(&self, sources: &Sources, extent: Extent) -> Result<u64, Stopped> {
        for (source, own) in sources.of_topic(self.partition) {
            let own = own.start.max(extent.start)..own.end.min(extent.end);
            if let Some(row) = self.last_agreed(source, own, extent).await? {
                return Ok(row.koff + 1);
            }
        }
        Ok(extent.start)
    }

    /// Finds the last row of a source, among those of some offsets, whose record the log still has.
    ///
    /// What was cut off was at the end, so the rows up to the one looked for all have theirs, and those behind it have
    /// none: each look halves what is left.
    async fn last_agreed(
        &self,
        source: Source,
        own: Range<u64>,
        extent: Extent,
    ) -> Result<Option<StoredRow>, Stopped> {
        let Self { partition, store, stop, .. } = self;
        let mut agreed: Option<StoredRow> = None;
        let (mut above, mut below) = (own.start.checked_sub(1), own.end);
        loop {
            let start = above.map_or(0, |above| above + 1);
            if start >= below {
                return Ok(agreed);
            }
            let near = start + (below - start) / 2;
            let row = until_done("read a stored row", *partition, stop, || {
                store.row_near(source.src, (above, below), near)
            })
            .await?;
            let Some(row) = row else { return Ok(agreed) };
            if self.is_click_of(&row, extent).await? {
                above = Some(row.koff);
                agreed = Some(row);
            } else {
                below = row.koff;
            }
        }
    }

    /// Begins another log behind what is left of one that was cut.
    async fn replace(
        &self,
        right: Right,
        source: Source,
        first_offset: u64,
        position: &Position,
    ) -> Result<(), Stopped> {
        let partition = self.partition;
        let lost = position.next - first_offset.min(position.next);
        let reason =
            format!("cut at offset {first_offset}, when everything before {} was done", position.next);
        counter!("hopline_processor_logs_cut_total").increment(1);
        tracing::error!(
            partition,
            first_offset,
            lost,
            "the log of partition {partition} was cut: it has lost {lost} offsets from {first_offset} on. Their clicks \
             stay counted; what is at these offsets now is counted as a log of its own"
        );
        let Some(src) = source.next_src() else {
            // 65,000 power cuts of one partition.
            tracing::error!(partition, "partition {partition} has had as many logs as can be told apart");
            self.stop.cancelled().await;
            return Err(Stopped);
        };
        self.begin(right, Source { src, first_offset, ..source }, &reason).await
    }

    /// Begins a log; whether that was done, the next look tells.
    async fn begin(&self, right: Right, source: Source, reason: &str) -> Result<(), Stopped> {
        let Self { partition, store, stop, .. } = self;
        until_done("begin a log", *partition, stop, || async {
            match store.begin(right, source, reason).await {
                Ok(()) | Err(InsertError::Fenced) => Ok(()),
                Err(InsertError::Doubtful(error)) => Err(error),
            }
        })
        .await
    }

    /// Loads the marked clicks of the hour before the last row: their first copies may still come.
    async fn remembered(&self, position: &Position) -> Result<Remembered, Stopped> {
        let Self { partition, store, stop, .. } = self;
        // Without a row the time is not known; the clock of this process will do.
        let last = position.last_row.as_ref().and_then(StoredRow::broker_ts);
        let since = last.unwrap_or_else(Utc::now) - MEMORY;
        let marked = until_done("read the marked clicks of the last hour", *partition, stop, || {
            store.marked_since(*partition, since, MEMORY_IDS)
        })
        .await?;
        let mut remembered = Remembered::default();
        for (click_id, broker_ts) in marked {
            remembered.admit(&click_id, broker_ts);
        }
        Ok(remembered)
    }
}
