//! The links of all workspaces, in memory: what a redirect looks up.
//!
//! [`follow`] feeds them from the compacted topic `links`.

mod apply;
pub mod follow;

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, PoisonError, RwLock},
};

use chrono::{DateTime, Utc};
use schemas::{
    id::{LinkId, WorkspaceId},
    message::ForwardQuery,
};

pub use apply::{Applied, Writer};

/// How many locks share the slugs: a map that grows holds up only its own part of the look-ups.
const SHARDS: usize = 64;

/// A link as a redirect needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The link.
    pub link_id: LinkId,
    /// The link's workspace.
    pub workspace_id: WorkspaceId,
    /// Where it leads, as text that may stand in a header.
    pub destination: Box<str>,
    /// 301, 302, 307 or 308.
    pub redirect_status: u16,
    /// Whether it redirects at all.
    pub is_active: bool,
    /// What happens to the visited URL's query.
    pub forward_query: ForwardQuery,
    /// Whether the destination gets the click's id.
    pub append_click_id: bool,
    /// From when on it answers 410.
    pub expires_at: Option<DateTime<Utc>>,
}

/// Slugs and where they lead. Clones are handles to the same map.
#[derive(Debug, Clone)]
pub struct Links {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hasher: RandomState,
    shards: [RwLock<HashMap<Box<str>, Arc<Target>>>; SHARDS],
}

impl Links {
    /// Makes an empty map and the one writer that may change it.
    pub fn new() -> (Self, Writer) {
        let shards = std::array::from_fn(|_| RwLock::default());
        let links = Self { shared: Arc::new(Shared { hasher: RandomState::new(), shards }) };
        let writer = Writer::new(links.clone());
        (links, writer)
    }

    /// Returns where a slug leads.
    pub fn find(&self, slug: &str) -> Option<Arc<Target>> {
        self.shard(slug).read().unwrap_or_else(PoisonError::into_inner).get(slug).cloned()
    }

    fn set(&self, slug: &str, target: Target) {
        let target = Arc::new(target);
        let mut shard = self.shard(slug).write().unwrap_or_else(PoisonError::into_inner);
        match shard.get_mut(slug) {
            Some(place) => *place = target,
            None => {
                shard.insert(slug.into(), target);
            }
        }
    }

    /// Removes a slug if it still leads to that link.
    fn clear(&self, slug: &str, link: LinkId) {
        let mut shard = self.shard(slug).write().unwrap_or_else(PoisonError::into_inner);
        if shard.get(slug).is_some_and(|target| target.link_id == link) {
            shard.remove(slug);
        }
    }

    fn shard(&self, slug: &str) -> &RwLock<HashMap<Box<str>, Arc<Target>>> {
        // The remainder is below the number of shards, so the cast loses nothing that counts.
        &self.shared.shards[self.shared.hasher.hash_one(slug) as usize % SHARDS]
    }
}
