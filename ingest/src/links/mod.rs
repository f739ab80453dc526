//! The links of all workspaces, in memory: what a redirect looks up.
//!
//! [`follow`] feeds them from the compacted topic `links`. A [`snapshot`] on the local disk stands in until the
//! topic has been read. A link that was made a moment ago is found by [`look_up`], where that is configured.

pub mod follow;
mod index;
pub mod look_up;
pub mod snapshot;
mod table;
mod target;
mod tokens;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use schemas::{id::LinkId, message::Link};

use table::Table;
pub use table::{Applied, Unreadable};
pub use target::Target;
#[cfg(test)]
pub(crate) use target::tests::link;
pub use tokens::{Caller, Digest, Presented};

/// Slugs and where they lead, and the tokens of external edges. Clones are handles to the same ones.
#[derive(Debug, Clone, Default)]
pub struct Links {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// What is served. Another one takes its place when the topic was read from its beginning.
    table: ArcSwap<Table>,
    /// Whether the topic was read to its end since the start.
    caught_up: AtomicBool,
    /// Which Kafka it was.
    cluster_id: OnceLock<String>,
}

impl Links {
    /// Returns where a slug leads.
    pub fn find(&self, slug: &str) -> Option<Arc<Target>> {
        self.shared.table.load().find(slug)
    }

    /// Returns the link of that id, whatever its slug is by now.
    pub fn find_by_id(&self, id: LinkId) -> Option<Arc<Target>> {
        self.shared.table.load().find_by_id(id)
    }

    /// Returns what is known of an edge token by the SHA-256 of its text.
    pub fn token(&self, presented: &Digest) -> Presented {
        self.shared.table.load().token(presented)
    }

    /// Returns how many links are not deleted.
    pub fn len(&self) -> usize {
        self.shared.table.load().len()
    }

    /// Returns whether there is no link.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether all that the topic had at the start is known: what is not found then is not there.
    pub fn is_caught_up(&self) -> bool {
        self.shared.caught_up.load(Ordering::Acquire)
    }

    /// Applies one record of the topic.
    ///
    /// # Errors
    /// When it cannot be read; nothing has changed then.
    pub fn apply(&self, key: &[u8], value: Option<&[u8]>) -> Result<Applied, Unreadable> {
        self.table().apply(key, value)
    }

    /// Applies a link that did not come from the topic, by the same rules: what the topic says later or has said of
    /// a higher revision stands.
    ///
    /// # Errors
    /// When it cannot redirect; nothing has changed then.
    pub fn apply_link(&self, link: Link) -> Result<Applied, Unreadable> {
        self.table().put(link)
    }

    fn table(&self) -> Arc<Table> {
        self.shared.table.load_full()
    }

    /// Serves another table from now on.
    fn serve(&self, table: Arc<Table>) {
        self.shared.table.store(table);
    }
}
