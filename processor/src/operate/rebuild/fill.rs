//! Reading ranges of the log into new tables, as a lane would.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::message::BorrowedMessage;
use service::clickhouse::client;

use super::plan::{Plan, Range};
use super::{Rebuild, RebuildError};
use crate::batch::Batcher;
use crate::decode::{Record, decode};
use crate::deleted_links::DeletedLinks;
use crate::lane::Dropped;
use crate::operate::reading::{Part, read};
use crate::operate::recount::applied::Applied;
use crate::repeats::{self, MEMORY_IDS, Remembered};
use crate::store::Right;

/// Least time between two lines about how far it is.
const TELL: Duration = Duration::from_secs(5);

impl Rebuild<'_> {
    /// Reads what a plan says; ranges that are filled already, or the first part of one, are not read again.
    pub(super) async fn fill(&self, right: Right, plan: &Plan) -> Result<(), RebuildError> {
        let recounts = Applied::read(&client(&self.config.clickhouse)).await?;
        for range in &plan.ranges {
            self.fill_range(right, plan, &recounts, range).await?;
        }
        Ok(())
    }

    async fn fill_range(
        &self,
        right: Right,
        plan: &Plan,
        recounts: &Applied,
        range: &Range,
    ) -> Result<(), RebuildError> {
        let Range { partition, src, from, to } = *range;
        let clicks = plan.generation().clicks();
        self.is_of_its_log(range).await?;
        // A batch is stored whole or not at all, so behind the last row nothing is.
        let start = self.tables.filled(&clicks, src, from, to).await?.unwrap_or(from);
        let mut filling = Filling {
            rebuild: self,
            right,
            plan,
            batcher: Batcher::new(self.config.batch),
            remembered: Remembered::default(),
            kept: self.tables.kept_marked(&clicks, src, from, to).await?,
            deleted_links: DeletedLinks::default(),
        };
        for (click_id, broker_ts) in self.tables.marked_before(&clicks, src, start, MEMORY_IDS).await? {
            filling.remembered.admit(&click_id, broker_ts);
        }
        let part = Part { topic: Arc::clone(&self.clicks), partition, offsets: start..to };
        // What is no click has its dead letter.
        let take = move |message: &BorrowedMessage<'_>| decode(src, &Record::of(message)).ok();
        let mut log = read(&self.config.kafka, part, take);
        let (began, mut told) = (Instant::now(), Instant::now());
        let mut read = 0_u64;
        while let Some(chunk) = log.recv().await {
            let chunk = chunk?;
            read += chunk.len() as u64;
            for mut row in chunk.into_iter().flatten() {
                recounts.apply(&mut row);
                if filling.batcher.is_full() || !filling.batcher.accepts(&row) {
                    filling.flush().await?;
                }
                filling.batcher.push(row);
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                let per_second = read as f64 / began.elapsed().as_secs_f64();
                let left = (to - start).saturating_sub(read);
                tracing::info!(
                    partition,
                    read,
                    left,
                    per_second,
                    "partition {partition}: read {read}, {left} left, {per_second:.0} a second"
                );
            }
        }
        filling.flush().await?;
        self.is_of_its_log(range).await?;
        // Had retention come in between, the range would be short of its beginning.
        let extent = self.log.extent(partition).await?;
        if extent.start > start {
            return Err(RebuildError::LogBegins { partition, from: start, start: extent.start });
        }
        Ok(())
    }
}

impl Rebuild<'_> {
    /// Refuses to read from a log that has taken the place of the one which a range was planned for, or was cut since.
    async fn is_of_its_log(&self, range: &Range) -> Result<(), RebuildError> {
        let Range { partition, src, to, .. } = *range;
        let sources = self.store.sources().await?;
        // The id first: the log of another topic is not known as one before it is adopted.
        let topic_id = sources.last(partition).map(|source| source.topic_id);
        if topic_id == Some(self.log.topic_id().await?) && sources.own(src).is_some_and(|own| to <= own.end) {
            Ok(())
        } else {
            Err(RebuildError::FormerLog { partition })
        }
    }
}

/// A range that is being filled.
struct Filling<'a> {
    rebuild: &'a Rebuild<'a>,
    right: Right,
    plan: &'a Plan,
    batcher: Batcher,
    remembered: Remembered,
    /// Marked clicks that were taken over. Had their first copies been lost, they were counted in their place.
    kept: HashSet<String>,
    deleted_links: DeletedLinks,
}

impl Filling<'_> {
    async fn flush(&mut self) -> Result<(), RebuildError> {
        let Some(batch) = self.batcher.cut() else { return Ok(()) };
        let Rebuild { store, .. } = self.rebuild;
        self.deleted_links.refresh(store).await?;
        let generation = self.plan.generation();
        let asked = repeats::to_look_up(batch.rows(), &self.remembered);
        let stored =
            if asked.is_empty() { Default::default() } else { store.stored(generation, &asked).await? };
        let mut repeats = repeats::find(batch.rows(), &self.remembered, &stored);
        if !self.kept.is_empty() {
            let kept = batch.rows().iter().enumerate().filter(|(_, row)| self.kept.contains(&row.click_id));
            repeats.extend(kept.map(|(place, _)| place));
            repeats.sort_unstable();
            repeats.dedup();
        }
        let dropped = Dropped::new(batch.rows(), &repeats, &self.deleted_links);
        if let Some(insertion) = batch.insertion(&dropped.places) {
            store.insert(generation, self.right, None, &insertion).await?;
        }
        for row in dropped.admitted(batch.rows()) {
            self.remembered.admit(&row.click_id, row.broker_ts);
        }
        Ok(())
    }
}
