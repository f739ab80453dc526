//! The links that were deleted, in memory: their clicks are not stored any more.
//!
//! It may be a moment behind the table, and so a click may slip through; the purge repeats for those. What it must
//! not do is to forget a link: a replay would bring its clicks back.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use schemas::id::LinkId;
use service::Shutdown;
use tokio::time::{MissedTickBehavior, interval};

use crate::clickhouse::{Store, StoreError};

/// How often the table is asked for what is new.
const INTERVAL: Duration = Duration::from_secs(1);

/// How far rows may become visible out of the order of their times, in milliseconds: an insert takes less.
const OUT_OF_ORDER: i64 = 60_000;

/// The deleted links that this process knows; clones share them.
#[derive(Clone, Default)]
pub struct DeletedLinks {
    known: Arc<RwLock<Known>>,
}

#[derive(Default)]
struct Known {
    links: HashSet<LinkId>,
    /// When the newest of them was added, in milliseconds of ClickHouse's clock.
    newest: i64,
}

impl fmt::Debug for DeletedLinks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DeletedLinks").finish_non_exhaustive()
    }
}

impl DeletedLinks {
    /// Returns whether a link was deleted.
    pub fn contain(&self, link: LinkId) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).links.contains(&link)
    }

    /// Reads what is new in the table.
    ///
    /// # Errors
    /// When ClickHouse does not answer.
    pub async fn refresh(&self, store: &Store) -> Result<(), StoreError> {
        let newest = self.known.read().unwrap_or_else(PoisonError::into_inner).newest;
        let added = store.deleted_links(newest - OUT_OF_ORDER).await?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for (link, added_at) in added {
            known.links.insert(link);
            known.newest = known.newest.max(added_at);
        }
        Ok(())
    }

    /// Follows the table until the stop is requested.
    pub async fn follow(self, store: Store, shutdown: Shutdown) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                _ = ticks.tick() => {}
            }
            tokio::select! {
                () = shutdown.wait() => return,
                refreshed = self.refresh(&store) => {
                    if let Err(error) = refreshed {
                        // The check of ClickHouse says so.
                        tracing::debug!(%error, "cannot read the deleted links: {error}");
                    }
                }
            }
        }
    }
}
