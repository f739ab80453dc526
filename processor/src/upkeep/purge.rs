//! Removes the rows of deleted links.

use metrics::counter;
use schemas::clickhouse::rollup::{Run, Scope};

use super::store::{MAX_LINKS, list};
use super::{Upkeep, UpkeepError, raise_epoch};

impl Upkeep {
    /// Removes the rows of deleted links.
    ///
    /// First the workspaces' own rollups are computed again without them. The raw rows go last, so an interrupted purge
    /// finds them again.
    pub(super) async fn purge(&self) -> Result<(), UpkeepError> {
        loop {
            let links = self.tables.links_to_purge().await?;
            if links.is_empty() {
                return Ok(());
            }
            let version = raise_epoch(&self.store).await?;
            for (workspace, slices) in self.tables.slices_of_links(&links).await? {
                let scope = Scope::Workspace(workspace);
                // The block is unused here: only a run over all workspaces decides whether a slice has changed.
                let slices = slices.into_iter().map(|slice| (slice, 0)).collect();
                self.tables.run(&Run { scope, version, slices }).await?;
            }
            let condition = format!("link_id IN ({})", list(&links));
            let mut rows = 0;
            for table in ["counts", "breakdowns", "conversions", "waiting_conversions"] {
                rows += self.tables.delete(table, &condition).await?;
            }
            rows += self.tables.delete_clicks(&condition).await?;
            self.tables.insert_purges(&links).await?;
            counter!("hopline_processor_purged_links_total").increment(links.len() as u64);
            tracing::info!(links = links.len(), rows, "removed the rows of {} deleted links", links.len());
            if links.len() < MAX_LINKS {
                return Ok(());
            }
        }
    }
}
