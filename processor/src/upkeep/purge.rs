//! Removes the rows of deleted links.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Days, NaiveDate};
use metrics::counter;
use schemas::clickhouse::rollup::{Run, Scope, last_day_of_month};
use schemas::id::WorkspaceId;
use uuid::Uuid;

use super::tables::Tables;
use super::{Upkeep, UpkeepError, raise_epoch};
use crate::clickhouse::StoreError;

/// Maximum links of one purge; keeps the statement well below `max_query_size`.
const MAX_LINKS: usize = 1_000;

/// Number of recently closed slices that are searched, like open ones, for clicks that came after their link's purge.
const RECENT_SLICES: u64 = 2;

/// Days rebuilt within this many days are searched as well: a rebuild may bring back rows of a link that was
/// purged shortly before.
const RECENT_REBUILD_DAYS: u64 = 2;

impl Upkeep {
    /// Removes the rows of deleted links.
    ///
    /// First the workspaces' own rollups are computed again without them. The raw rows go last, so an interrupted purge
    /// finds them again.
    pub(super) async fn purge(&mut self) -> Result<(), UpkeepError> {
        loop {
            let links = self.tables.links_to_purge().await?;
            if links.is_empty() {
                return Ok(());
            }
            let version = raise_epoch(&self.store).await?;
            for (workspace, slices) in self.tables.slices_of_links(&links).await? {
                let scope = Scope::Workspace(workspace);
                // The replaced version's rows contain the links' visitors and are orphaned.
                self.note_orphaned_rows();
                // The block is unused here: only a run over all workspaces decides whether a slice has changed.
                let slices = slices.into_iter().map(|slice| (slice, 0)).collect();
                self.tables.run(&Run { scope, version, slices }).await?;
            }
            let condition = format!("link_id IN ({})", list(&links));
            let mut rows = 0;
            self.tables.keep_positions(&condition).await?;
            for table in ["counts", "breakdowns", "conversions", "clicks"] {
                rows += self.tables.delete(table, &condition).await?;
            }
            self.tables.insert_purges(&links).await?;
            counter!("hopline_processor_purged_links_total").increment(links.len() as u64);
            tracing::info!(links = links.len(), rows, "removed the rows of {} deleted links", links.len());
            if links.len() < MAX_LINKS {
                return Ok(());
            }
        }
    }
}

impl Tables {
    /// Returns deleted links that were not purged yet, or that have rows again.
    async fn links_to_purge(&self) -> Result<Vec<Uuid>, StoreError> {
        let last_closed = self.last_closed_slice().await?;
        let recent = last_closed.and_then(|last| last.checked_sub_days(Days::new(RECENT_SLICES)));
        let sql = format!(
            "SELECT DISTINCT toString(link_id) FROM \
             (SELECT link_id FROM deleted_links \
              WHERE link_id NOT IN (SELECT link_id FROM purges) LIMIT {MAX_LINKS} \
              UNION ALL SELECT link_id FROM clicks \
              WHERE (toDate(broker_ts) >= '{recent}' \
                     OR toDate(broker_ts) IN (SELECT day FROM rebuilds WHERE at > now() - INTERVAL {RECENT_REBUILD_DAYS} DAY)) \
                AND link_id IN (SELECT link_id FROM deleted_links) LIMIT 1 BY link_id \
              UNION ALL SELECT link_id FROM conversions \
              WHERE link_id IN (SELECT link_id FROM deleted_links) LIMIT 1 BY link_id) LIMIT {MAX_LINKS}",
            recent = recent.unwrap_or(DateTime::UNIX_EPOCH.date_naive()),
        );
        let links: Vec<String> = self.statements.fetch_all(&sql).await?;
        Ok(links.iter().filter_map(|link| link.parse().ok()).collect())
    }

    /// Returns the closed slices whose rollups have clicks of these links, by workspace.
    async fn slices_of_links(
        &self,
        links: &[Uuid],
    ) -> Result<BTreeMap<WorkspaceId, BTreeSet<NaiveDate>>, StoreError> {
        let sql = format!(
            "SELECT toString(workspace_id), toString(toDate(broker_ts) AS slice), toString(toDate(occurred_at) AS day) \
             FROM clicks WHERE link_id IN ({}) GROUP BY workspace_id, slice, day",
            list(links),
        );
        let rows: Vec<(String, String, String)> = self.statements.fetch_all(&sql).await?;
        let closed = self.last_closed_slice().await?;
        let mut touched: BTreeMap<WorkspaceId, BTreeSet<NaiveDate>> = BTreeMap::new();
        for (workspace, slice, day) in &rows {
            let (Ok(workspace), Ok(slice), Ok(day)) =
                (workspace.parse(), slice.parse::<NaiveDate>(), day.parse::<NaiveDate>())
            else {
                continue;
            };
            // A click counts in its own slice and in the month's last one, if the month was over and the click not late.
            for slice in [slice, last_day_of_month(day)] {
                if closed.is_some_and(|closed| slice <= closed) {
                    touched.entry(WorkspaceId::from_uuid(workspace)).or_default().insert(slice);
                }
            }
        }
        Ok(touched)
    }

    async fn insert_purges(&self, links: &[Uuid]) -> Result<(), StoreError> {
        let values: Vec<String> = links.iter().map(|link| format!("('{link}', now64(3))")).collect();
        let sql = format!("INSERT INTO purges (link_id, at) VALUES {}", values.join(", "));
        self.statements.execute(&sql).await
    }
}

fn list(links: &[Uuid]) -> String {
    links.iter().map(|link| format!("toUUID('{link}')")).collect::<Vec<_>>().join(", ")
}
