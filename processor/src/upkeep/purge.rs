//! Removing the rows of deleted links.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Days, NaiveDate};
use metrics::counter;
use schemas::clickhouse::Generation;
use schemas::clickhouse::rollup::{Run, Scope, fold_of_month};
use schemas::id::WorkspaceId;
use uuid::Uuid;

use super::tables::Tables;
use super::{Upkeep, UpkeepError};
use crate::store::StoreError;

/// Links of one purge at most: their ids stay well below `max_query_size`.
const LINKS: usize = 1_000;

/// Open slices, and this many closed ones before them, are searched for clicks that came after their link's purge.
const RECENT_SLICES: u64 = 2;

impl Upkeep {
    /// Removes what is left of deleted links.
    ///
    /// The workspaces' own rollups are computed again without them first, from the raw rows: these go last, so a
    /// purge that was broken off finds them again.
    pub(super) async fn purge(&mut self, generation: Generation) -> Result<(), UpkeepError> {
        loop {
            let links = self.tables.links_to_purge(generation).await?;
            if links.is_empty() {
                return Ok(());
            }
            let version = self.take().await?;
            for (workspace, slices) in self.tables.slices_of_links(generation, &links).await? {
                let scope = Scope::Workspace(workspace);
                // The rows that this version replaces have the links' visitors in them.
                self.litter = true;
                let slices = slices.into_iter().collect();
                self.run(&Run { generation, scope, version, slices }).await?;
            }
            let condition = format!("link_id IN ({})", list(&links));
            let tables = [generation.counts(), generation.breakdowns(), "conversions".to_owned()];
            let mut rows = 0;
            self.tables.keep_positions(&generation.clicks(), &condition).await?;
            for table in tables.into_iter().chain([generation.clicks()]) {
                rows += self.tables.delete(&table, &condition).await?;
            }
            self.tables.insert_purges(generation, &links).await?;
            counter!("hopline_processor_purged_links_total").increment(links.len() as u64);
            tracing::info!(links = links.len(), rows, "removed the rows of {} deleted links", links.len());
            if links.len() < LINKS {
                return Ok(());
            }
        }
    }
}

impl Tables {
    /// Returns deleted links that were not purged yet, or that have rows again.
    async fn links_to_purge(&self, generation: Generation) -> Result<Vec<Uuid>, StoreError> {
        let Generation(number) = generation;
        let last_closed = self.last_closed_slice(generation).await?;
        let recent = last_closed.and_then(|last| last.checked_sub_days(Days::new(RECENT_SLICES)));
        let sql = format!(
            "SELECT DISTINCT toString(link_id) FROM \
             (SELECT link_id FROM deleted_links \
              WHERE link_id NOT IN (SELECT link_id FROM purges WHERE generation = {number}) LIMIT {LINKS} \
              UNION ALL SELECT link_id FROM {clicks} \
              WHERE toDate(broker_ts) >= '{recent}' \
                AND link_id IN (SELECT link_id FROM deleted_links) LIMIT 1 BY link_id \
              UNION ALL SELECT link_id FROM conversions \
              WHERE link_id IN (SELECT link_id FROM deleted_links) LIMIT 1 BY link_id) LIMIT {LINKS}",
            recent = recent.unwrap_or(DateTime::UNIX_EPOCH.date_naive()),
            clicks = generation.clicks(),
        );
        let links: Vec<String> = self.in_time(self.query(&sql).fetch_all()).await?;
        Ok(links.iter().filter_map(|link| link.parse().ok()).collect())
    }

    /// Returns the closed slices whose rollups have clicks of these links, by workspace.
    async fn slices_of_links(
        &self,
        generation: Generation,
        links: &[Uuid],
    ) -> Result<BTreeMap<WorkspaceId, BTreeSet<NaiveDate>>, StoreError> {
        let sql = format!(
            "SELECT toString(workspace_id), toString(toDate(broker_ts) AS slice), toString(toDate(occurred_at) AS day) \
             FROM {} WHERE link_id IN ({}) GROUP BY workspace_id, slice, day",
            generation.clicks(),
            list(links),
        );
        let rows: Vec<(String, String, String)> = self.in_time(self.query(&sql).fetch_all()).await?;
        let closed = self.last_closed_slice(generation).await?;
        let mut touched: BTreeMap<WorkspaceId, BTreeSet<NaiveDate>> = BTreeMap::new();
        for (workspace, slice, day) in &rows {
            let (Ok(workspace), Ok(slice), Ok(day)) =
                (workspace.parse(), slice.parse::<NaiveDate>(), day.parse::<NaiveDate>())
            else {
                continue;
            };
            // A click is in the rows of its own slice, and in its month's, if that is over and it was not late.
            for slice in [slice, fold_of_month(day)] {
                if closed.is_some_and(|closed| slice <= closed) {
                    touched.entry(WorkspaceId::from_uuid(workspace)).or_default().insert(slice);
                }
            }
        }
        Ok(touched)
    }

    async fn insert_purges(&self, generation: Generation, links: &[Uuid]) -> Result<(), StoreError> {
        let Generation(number) = generation;
        let values: Vec<String> =
            links.iter().map(|link| format!("({number}, '{link}', now64(3))")).collect();
        let sql = format!("INSERT INTO purges (generation, link_id, at) VALUES {}", values.join(", "));
        self.in_time(self.query(&sql).execute()).await
    }
}

fn list(links: &[Uuid]) -> String {
    links.iter().map(|link| format!("toUUID('{link}')")).collect::<Vec<_>>().join(", ")
}
