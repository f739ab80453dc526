//! The deleted links, in memory. Their clicks are no longer stored.
//!
//! The set may be a moment behind the table, so a few clicks may still be stored; the purge runs again for them. It
//! must never forget a link, because a replay would restore its clicks.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use schemas::id::LinkId;
use service::Shutdown;
use tokio::time::{MissedTickBehavior, interval};

use crate::clickhouse::{Store, StoreError};

/// How often new entries are read from the table.
const INTERVAL: Duration = Duration::from_secs(1);

/// Rows may become visible out of the order of their times by at most this many milliseconds; an insert takes less.
const OUT_OF_ORDER: i64 = 60_000;

/// The deleted links that this process knows. Clones share them.
#[derive(Clone, Default)]
pub struct DeletedLinks {
    known: Arc<RwLock<Known>>,
}

#[derive(Default)]
struct Known {
    links: HashSet<LinkId>,
    /// When the newest link was added, in milliseconds of ClickHouse's clock.
    newest: i64,
}

impl fmt::Debug for DeletedLinks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DeletedLinks").finish_non_exhaustive()
    }
}

impl DeletedLinks {
    /// Returns whether a link is deleted.
    pub fn contain(&self, link: LinkId) -> bool {
        self.known.read().links.contains(&link)
    }

    /// Reads new entries from the table.
    ///
    /// # Errors
    /// When ClickHouse does not answer.
    pub async fn refresh(&self, store: &Store) -> Result<(), StoreError> {
        // A replica that lacks links may get older ones later.
        let is_complete = store.sync(&["deleted_links"]).await.is_ok();
        let newest = self.known.read().newest;
        let added = store.deleted_links(newest - OUT_OF_ORDER).await?;
        let mut known = self.known.write();
        for (link, added_at) in added {
            known.links.insert(link);
            if is_complete {
                known.newest = known.newest.max(added_at);
            }
        }
        Ok(())
    }

    /// Refreshes the set regularly until the stop is requested.
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
                        // The readiness check of ClickHouse reports it.
                        tracing::debug!(%error, "cannot read the deleted links: {error}");
                    }
                }
            }
        }
    }
}
