//! The links of all workspaces, in memory: what a redirect looks up.
//!
//! [`follow`] applies the records of the compacted topic `links`. The edge serves a [`snapshot`] from the local disk
//! until it has read the topic. [`lookup`], if configured, finds links that have not reached the topic yet.

pub mod follow;
mod index;
pub mod lookup;
mod record;
pub mod snapshot;
mod table;
mod target;
mod tokens;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use schemas::id::LinkId;
use schemas::message::Link;

pub use self::record::{Applied, RecordError};
pub use self::target::Target;
#[cfg(test)]
pub(crate) use self::target::link;
pub use self::tokens::{Caller, Digest, TokenStatus};
use crate::links::table::Table;

/// The links, and the tokens of external edges. Clones share the same data.
#[derive(Debug, Clone, Default)]
pub struct Links {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The served table. Replaced once the topic has been read from its beginning.
    table: ArcSwap<Table>,
    /// Whether the topic has been read to its end since the process started.
    caught_up: AtomicBool,
    /// The id of the Kafka cluster that the topic is in.
    cluster_id: OnceLock<String>,
}

impl Links {
    /// Returns the link with this slug.
    pub fn find(&self, slug: &str) -> Option<Arc<Target>> {
        self.shared.table.load().find(slug)
    }

    /// Returns the link with this id.
    pub fn find_by_id(&self, id: LinkId) -> Option<Arc<Target>> {
        self.shared.table.load().find_by_id(id)
    }

    /// Returns the status of the edge token with this SHA-256.
    pub fn token(&self, digest: &Digest) -> TokenStatus {
        self.shared.table.load().token(digest)
    }

    /// Returns the number of links that are not deleted.
    pub fn len(&self) -> usize {
        self.shared.table.load().len()
    }

    /// Returns whether there is no link.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the topic has been read to its end, so that a link that is not found does not exist.
    pub fn is_caught_up(&self) -> bool {
        self.shared.caught_up.load(Ordering::Acquire)
    }

    /// Applies one record of the topic.
    ///
    /// # Errors
    /// When the record is invalid; nothing changes.
    pub fn apply(&self, key: &[u8], value: Option<&[u8]>) -> Result<Applied, RecordError> {
        self.table().apply(key, value)
    }

    /// Applies a link that did not come from the topic. The highest revision wins, as for records of the topic.
    ///
    /// # Errors
    /// When the link is invalid; nothing changes.
    pub fn apply_link(&self, link: Link) -> Result<Applied, RecordError> {
        self.table().put(link)
    }

    fn table(&self) -> Arc<Table> {
        self.shared.table.load_full()
    }

    /// Replaces the served table.
    fn serve(&self, table: Arc<Table>) {
        self.shared.table.store(table);
    }
}
