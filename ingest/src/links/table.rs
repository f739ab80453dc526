//! What the records of topic `links` add up to, and the rules by which they do.
//!
//! The outcome is the same in whichever order records come, and however often: for each link the record of its
//! highest revision counts, and a slug belongs to the live link that has it. No two live links have one slug in
//! Postgres, but a reader may see it for a while; then it belongs to the later made one.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use schemas::{
    id::{EdgeTokenId, LinkId},
    message::{DecodeError, EdgeToken, Link, LinkRecord, Message as _},
};

use super::{
    Target,
    index::{Index, Key},
    tokens::{Digest, EdgeTokens, Presented, Token},
};

/// What a record did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It told something new.
    Changed,
    /// It was older than what is known.
    Older,
}

/// Why a record cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The bytes are no record of ours.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The record has no value: links are deleted by a value, so nothing of ours writes this.
    #[error("no value")]
    NoValue,
    /// No browser could follow the destination.
    #[error("destination of {link} is not a URL")]
    Destination {
        /// The link.
        link: LinkId,
        /// What is wrong with it.
        source: url::ParseError,
    },
    /// The status is not one of a redirect.
    #[error("{status} is no redirect status for {link}")]
    Status {
        /// The link.
        link: LinkId,
        /// The status.
        status: u16,
    },
    /// The slug is longer than any URL.
    #[error("slug of {link} is too long")]
    Slug {
        /// The link.
        link: LinkId,
    },
    /// The digest of a token is none.
    #[error("digest of {0} is not 64 hex digits")]
    Token(EdgeTokenId),
}

/// Every link and every edge token. Readers take one shard's lock for a look-up; writers take turns.
#[derive(Debug)]
pub(super) struct Table {
    slugs: Index,
    ids: Index,
    tokens: RwLock<EdgeTokens>,
    rest: Mutex<Rest>,
    /// How many records have changed something.
    changes: AtomicU64,
}

/// What nobody but a writer needs.
#[derive(Debug, Default)]
struct Rest {
    /// Links that are gone, with the revision that said so: an older record must not bring them back.
    deleted: HashMap<LinkId, u64>,
    /// Slugs that more than one live link has, with those that do not hold it.
    contested: HashMap<Box<str>, Vec<LinkId>>,
    live: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            slugs: Index::new(|target| Key::Slug(target.slug())),
            ids: Index::new(|target| Key::Id(target.link_id)),
            tokens: RwLock::default(),
            rest: Mutex::default(),
            changes: AtomicU64::new(0),
        }
    }
}

impl Table {
    pub(super) fn find(&self, slug: &str) -> Option<Arc<Target>> {
        self.slugs.find(Key::Slug(slug))
    }

    pub(super) fn find_by_id(&self, id: LinkId) -> Option<Arc<Target>> {
        self.ids.find(Key::Id(id))
    }

    pub(super) fn token(&self, presented: &Digest) -> Presented {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).find(presented)
    }

    /// Returns how many links are not deleted.
    pub(super) fn len(&self) -> usize {
        self.rest().live
    }

    /// Returns how many links and tokens were ever told of; no record takes one away again.
    pub(super) fn known(&self) -> usize {
        let rest = self.rest();
        rest.live
            + rest.deleted.len()
            + self.tokens.read().unwrap_or_else(PoisonError::into_inner).iter().count()
    }

    /// Returns how many records have changed something.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Applies one record of the topic.
    pub(super) fn apply(&self, key: &[u8], value: Option<&[u8]>) -> Result<Applied, Unreadable> {
        let value = value.ok_or(Unreadable::NoValue)?;
        if key.starts_with(EdgeToken::KEY_PREFIX.as_bytes()) {
            let record = EdgeToken::decode(value)?;
            let applied = self.tokens.write().unwrap_or_else(PoisonError::into_inner).apply(&record)?;
            return Ok(self.count(applied));
        }
        match decode(value)? {
            LinkRecord::Live(link) => self.put(link),
            LinkRecord::Deleted(link) => Ok(self.delete(link.id, link.revision)),
        }
    }

    /// Applies a link that is there.
    pub(super) fn put(&self, link: Link) -> Result<Applied, Unreadable> {
        Ok(self.put_target(Target::try_from(link)?))
    }

    pub(super) fn put_target(&self, target: Target) -> Applied {
        let mut rest = self.rest();
        let (id, revision) = (target.link_id, target.revision);
        if self.revision(&rest, id).is_some_and(|known| revision <= known) {
            return Applied::Older;
        }
        let target = Arc::new(target);
        let before = self.ids.put(Arc::clone(&target));
        // The new place before the old one is given up: a link that moves is never nowhere.
        self.claim(&mut rest, &target);
        match before {
            Some(before) if before.slug() != target.slug() => self.release(&mut rest, before.slug(), id),
            Some(_) => {}
            None => rest.live += 1,
        }
        rest.deleted.remove(&id);
        self.count(Applied::Changed)
    }

    pub(super) fn delete(&self, id: LinkId, revision: u64) -> Applied {
        let mut rest = self.rest();
        if self.revision(&rest, id).is_some_and(|known| revision <= known) {
            return Applied::Older;
        }
        rest.deleted.insert(id, revision);
        if let Some(before) = self.ids.remove(Key::Id(id)) {
            rest.live -= 1;
            self.release(&mut rest, before.slug(), id);
        }
        self.count(Applied::Changed)
    }

    pub(super) fn put_token(&self, id: EdgeTokenId, token: Token) {
        let applied = self.tokens.write().unwrap_or_else(PoisonError::into_inner).put(id, token);
        self.count(applied);
    }

    /// Returns the live links, part by part.
    pub(super) fn live(&self) -> impl Iterator<Item = Vec<Arc<Target>>> {
        self.ids.shards()
    }

    /// Returns the deleted links with their revisions.
    pub(super) fn deleted(&self) -> Vec<(LinkId, u64)> {
        self.rest().deleted.iter().map(|(id, revision)| (*id, *revision)).collect()
    }

    pub(super) fn tokens(&self) -> EdgeTokens {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn revision(&self, rest: &Rest, id: LinkId) -> Option<u64> {
        let live = self.ids.find(Key::Id(id)).map(|target| target.revision);
        live.or_else(|| rest.deleted.get(&id).copied())
    }

    /// Gives a link its slug, unless a later made link has it.
    fn claim(&self, rest: &mut Rest, target: &Arc<Target>) {
        let slug = target.slug();
        let loser = match self.slugs.find(Key::Slug(slug)) {
            Some(holder) if holder.link_id > target.link_id => target.link_id,
            holder => {
                self.slugs.put(Arc::clone(target));
                match holder.filter(|holder| holder.link_id != target.link_id) {
                    Some(holder) => holder.link_id,
                    None => return,
                }
            }
        };
        let losers = rest.contested.entry(slug.into()).or_default();
        losers.retain(|id| *id != target.link_id && *id != loser);
        losers.push(loser);
    }

    /// Takes a slug away from a link, and gives it to the next that has it.
    fn release(&self, rest: &mut Rest, slug: &str, id: LinkId) {
        let is_holder = self.slugs.find(Key::Slug(slug)).is_some_and(|holder| holder.link_id == id);
        let Some(losers) = rest.contested.get_mut(slug) else {
            if is_holder {
                self.slugs.remove(Key::Slug(slug));
            }
            return;
        };
        if is_holder && let Some(next) = losers.iter().max().and_then(|next| self.ids.find(Key::Id(*next))) {
            losers.retain(|loser| *loser != next.link_id);
            self.slugs.put(next);
        } else {
            losers.retain(|loser| *loser != id);
        }
        if losers.is_empty() {
            rest.contested.remove(slug);
        }
    }

    fn count(&self, applied: Applied) -> Applied {
        if applied == Applied::Changed {
            self.changes.fetch_add(1, Ordering::Release);
        }
        applied
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a record of a link.
fn decode(value: &[u8]) -> Result<LinkRecord, DecodeError> {
    // Nearly all are live links, and the way that tells both kinds apart reads each of them twice.
    if std::str::from_utf8(value).is_ok_and(|text| !text.contains("\"deleted_at\""))
        && let Ok(link) = serde_json::from_slice(value)
    {
        return Ok(LinkRecord::Live(link));
    }
    LinkRecord::decode(value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use chrono::DateTime;
    use proptest::prelude::*;
    use schemas::message::DeletedLink;
    use uuid::Uuid;

    use super::{super::link, *};

    fn id(number: u128) -> LinkId {
        LinkId::from_uuid(Uuid::from_u128(number))
    }

    fn live(number: u128, revision: u64, slug: &str) -> Vec<u8> {
        LinkRecord::Live(link(number, revision, slug, "https://a.example/")).encode()
    }

    fn deleted(number: u128, revision: u64) -> Vec<u8> {
        LinkRecord::Deleted(DeletedLink {
            version: Default::default(),
            id: id(number),
            revision,
            deleted_at: DateTime::UNIX_EPOCH,
        })
        .encode()
    }

    fn table<'a>(records: impl IntoIterator<Item = &'a Vec<u8>>) -> Table {
        let table = Table::default();
        for record in records {
            table.apply(b"key", Some(record)).unwrap();
        }
        table
    }

    /// Applies the records and returns what the slugs `s` and `t` lead to.
    fn after(records: &[Vec<u8>]) -> (Option<LinkId>, Option<LinkId>) {
        let table = table(records);
        let lead = |slug| table.find(slug).map(|target| target.link_id);
        (lead("s"), lead("t"))
    }

    #[test]
    fn a_link_is_found_by_its_slug_only() {
        assert_eq!(after(&[live(1, 1, "s")]), (Some(id(1)), None));
        assert_eq!(after(&[live(1, 1, "t")]), (None, Some(id(1))));
        assert_eq!(after(&[live(1, 1, "S")]), (None, None));
    }

    #[test]
    fn an_older_revision_is_ignored() {
        assert_eq!(after(&[live(1, 2, "s"), live(1, 1, "t")]), (Some(id(1)), None));
        assert_eq!(after(&[live(1, 2, "s"), live(1, 2, "t")]), (Some(id(1)), None));
    }

    #[test]
    fn a_deleted_link_stays_deleted() {
        assert_eq!(after(&[live(1, 1, "s"), deleted(1, 2)]), (None, None));
        assert_eq!(after(&[live(1, 1, "s"), deleted(1, 2), live(1, 1, "s")]), (None, None));
        // After compaction the delete may be all that is left.
        assert_eq!(after(&[deleted(1, 2), live(1, 1, "s")]), (None, None));
    }

    #[test]
    fn a_slug_moves_to_another_link_in_either_order() {
        assert_eq!(after(&[live(1, 1, "s"), deleted(1, 2), live(2, 1, "s")]), (Some(id(2)), None));
        assert_eq!(after(&[live(1, 1, "s"), live(2, 1, "s"), deleted(1, 2)]), (Some(id(2)), None));
        assert_eq!(after(&[live(2, 1, "s"), live(1, 1, "s"), deleted(1, 2)]), (Some(id(2)), None));
        assert_eq!(after(&[live(1, 1, "s"), live(1, 2, "t"), live(2, 1, "s")]), (Some(id(2)), Some(id(1))));
        assert_eq!(after(&[live(1, 1, "s"), live(2, 1, "s"), live(1, 2, "t")]), (Some(id(2)), Some(id(1))));
    }

    #[test]
    fn what_cannot_be_read_changes_nothing() {
        let table = table(&[live(1, 1, "s")]);
        let later = String::from_utf8(live(1, 2, "t")).unwrap().replacen("\"v\":1", "\"v\":9", 1);
        assert!(matches!(
            table.apply(b"key", Some(later.as_bytes())),
            Err(Unreadable::Decode(DecodeError::UnknownVersion(9)))
        ));
        assert!(matches!(table.apply(b"key", Some(b"\xff")), Err(Unreadable::Decode(_))));
        assert!(matches!(table.apply(b"key", None), Err(Unreadable::NoValue)));
        let status = String::from_utf8(live(1, 2, "t")).unwrap().replace("302", "200");
        assert!(matches!(table.apply(b"key", Some(status.as_bytes())), Err(Unreadable::Status { .. })));
        assert_eq!(table.find("s").map(|target| target.link_id), Some(id(1)));
        assert!(table.find("t").is_none());
        assert_eq!((table.len(), table.changes()), (1, 1));
    }

    #[test]
    fn edge_tokens_are_no_links() {
        let table = Table::default();
        let fixture = include_bytes!("../../../schemas/fixtures/edge_token.v1.json").trim_ascii();
        let key = EdgeToken::decode(fixture).unwrap().key();
        assert_eq!(table.apply(key.as_bytes(), Some(fixture)).unwrap(), Applied::Changed);
        assert!(matches!(table.apply(key.as_bytes(), Some(b"{}")), Err(Unreadable::Decode(_))));
        assert_eq!((table.len(), table.known()), (0, 1));
    }

    /// Some links, each with some revisions; a revision says the same however often it is told.
    fn records() -> impl Strategy<Value = Vec<(u128, u64, Option<String>)>> {
        let history = proptest::collection::vec(proptest::option::weighted(0.8, "[abc]"), 1..5);
        proptest::collection::vec(history, 1..6).prop_map(|links| {
            let link = |(number, history): (usize, Vec<Option<String>>)| {
                (1_u64..).zip(history).map(move |(revision, slug)| (number as u128 + 1, revision, slug))
            };
            links.into_iter().enumerate().flat_map(link).collect()
        })
    }

    proptest! {
        #[test]
        fn any_order_of_the_same_records_gives_the_same_links(
            (records, order) in records().prop_flat_map(|records| {
                let length = records.len();
                // Some twice, some after a newer one, in any order; each at least once.
                let more = proptest::collection::vec(0..length, 0..length);
                let order = more.prop_map(move |more| (0..length).chain(more).collect::<Vec<_>>()).prop_shuffle();
                (Just(records), order)
            }),
        ) {
            let mut newest = BTreeMap::new();
            for (number, _, slug) in &records {
                newest.insert(*number, slug.clone());
            }
            let mut expected = BTreeMap::new();
            for (number, slug) in &newest {
                if let Some(slug) = slug {
                    // Later made ones come later in this order.
                    expected.insert(slug.clone(), id(*number));
                }
            }
            let told: Vec<_> = records
                .iter()
                .map(|(number, revision, slug)| match slug {
                    Some(slug) => live(*number, *revision, slug),
                    None => deleted(*number, *revision),
                })
                .collect();
            let table = table(order.iter().map(|place| &told[*place]));
            for slug in ["a", "b", "c"] {
                prop_assert_eq!(table.find(slug).map(|target| target.link_id), expected.get(slug).copied());
            }
            for (number, slug) in &newest {
                let known = table.find_by_id(id(*number)).map(|target| target.slug().to_owned());
                prop_assert_eq!(&known, slug);
            }
            prop_assert_eq!(table.len(), newest.values().flatten().count());
            prop_assert_eq!(table.known(), newest.len());
            let contested = newest.values().flatten().count() - expected.len();
            prop_assert_eq!(table.rest().contested.values().map(Vec::len).sum::<usize>(), contested);
        }
    }
}
