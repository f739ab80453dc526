//! The state that the records of topic `links` produce, and the rules for applying them.
//!
//! The result does not depend on the order of the records or on repeats: the highest revision of a link wins, and a
//! slug finds the live link that has it. In Postgres no two live links have the same slug, but a reader of the topic
//! may see two for a while; the slug then finds the link that was created later.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use schemas::id::{EdgeTokenId, LinkId};
use schemas::message::{DecodeError, EdgeToken, Link, LinkRecord, Message as _};

use crate::links::index::{Index, Key};
use crate::links::record::{Applied, RecordError};
use crate::links::target::Target;
use crate::links::tokens::{Digest, EdgeTokens, Token, TokenStatus};

/// All links and edge tokens. A lookup locks one shard; writers lock `writer`.
#[derive(Debug)]
pub(super) struct Table {
    slugs: Index,
    ids: Index,
    tokens: RwLock<EdgeTokens>,
    writer: Mutex<WriterState>,
    /// The number of records that changed something.
    changes: AtomicU64,
}

/// State that lookups do not need.
#[derive(Debug, Default)]
struct WriterState {
    /// Deleted links with the revision of the deletion. An older record must not restore the link.
    deleted: HashMap<LinkId, u64>,
    /// Slugs that more than one live link has, with the links that the slug does not find.
    shadowed: HashMap<Box<str>, Vec<LinkId>>,
    /// The number of links that are not deleted.
    live: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            slugs: Index::new(|target| Key::Slug(target.slug())),
            ids: Index::new(|target| Key::Id(target.link_id)),
            tokens: RwLock::default(),
            writer: Mutex::default(),
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

    pub(super) fn token(&self, digest: &Digest) -> TokenStatus {
        self.tokens.read().find(digest)
    }

    /// Returns the number of links that are not deleted.
    pub(super) fn len(&self) -> usize {
        self.writer.lock().live
    }

    /// Returns the number of links and tokens, deleted and revoked ones included. It never decreases.
    pub(super) fn known(&self) -> usize {
        let writer = self.writer.lock();
        writer.live + writer.deleted.len() + self.tokens.read().iter().count()
    }

    /// Returns the number of records that changed something.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Applies one record of the topic.
    pub(super) fn apply(&self, key: &[u8], value: Option<&[u8]>) -> Result<Applied, RecordError> {
        let value = value.ok_or(RecordError::NoValue)?;
        if key.starts_with(EdgeToken::KEY_PREFIX.as_bytes()) {
            let record = EdgeToken::decode(value)?;
            let applied = self.tokens.write().apply(&record)?;
            return Ok(self.count(applied));
        }
        match decode(value)? {
            LinkRecord::Live(link) => self.put(link),
            LinkRecord::Deleted(link) => Ok(self.delete(link.id, link.revision)),
        }
    }

    /// Applies a link that is not deleted.
    pub(super) fn put(&self, link: Link) -> Result<Applied, RecordError> {
        let target = Target::try_from(link)?;
        let mut writer = self.writer.lock();
        let (id, revision) = (target.link_id, target.revision);
        if self.revision(&writer, id).is_some_and(|known| revision <= known) {
            return Ok(Applied::Older);
        }
        let target = Arc::new(target);
        let before = self.ids.put(Arc::clone(&target));
        // The new slug first, so that a link whose slug changes can always be found.
        self.add_slug(&mut writer, &target);
        match before {
            None => writer.live += 1,
            Some(before) if before.slug() != target.slug() => {
                self.remove_slug(&mut writer, before.slug(), id);
            }
            Some(_) => {}
        }
        writer.deleted.remove(&id);
        Ok(self.count(Applied::Changed))
    }

    pub(super) fn delete(&self, id: LinkId, revision: u64) -> Applied {
        let mut writer = self.writer.lock();
        if self.revision(&writer, id).is_some_and(|known| revision <= known) {
            return Applied::Older;
        }
        writer.deleted.insert(id, revision);
        if let Some(before) = self.ids.remove(Key::Id(id)) {
            writer.live -= 1;
            self.remove_slug(&mut writer, before.slug(), id);
        }
        self.count(Applied::Changed)
    }

    pub(super) fn put_token(&self, id: EdgeTokenId, token: Token) {
        let applied = self.tokens.write().put(id, token);
        self.count(applied);
    }

    /// Returns the links that are not deleted, in parts.
    pub(super) fn live(&self) -> impl Iterator<Item = Vec<Arc<Target>>> {
        self.ids.shards()
    }

    /// Returns the deleted links with their revisions.
    pub(super) fn deleted(&self) -> Vec<(LinkId, u64)> {
        self.writer.lock().deleted.iter().map(|(id, revision)| (*id, *revision)).collect()
    }

    pub(super) fn tokens(&self) -> EdgeTokens {
        self.tokens.read().clone()
    }

    fn revision(&self, writer: &WriterState, id: LinkId) -> Option<u64> {
        let live = self.ids.find(Key::Id(id)).map(|target| target.revision);
        live.or_else(|| writer.deleted.get(&id).copied())
    }

    /// Lets the link's slug find this link, unless a link that was created later has the same slug.
    fn add_slug(&self, writer: &mut WriterState, target: &Arc<Target>) {
        let slug = target.slug();
        let shadowed = match self.slugs.find(Key::Slug(slug)) {
            Some(found) if found.link_id > target.link_id => target.link_id,
            found => {
                self.slugs.put(Arc::clone(target));
                match found.filter(|found| found.link_id != target.link_id) {
                    Some(found) => found.link_id,
                    None => return,
                }
            }
        };
        let others = writer.shadowed.entry(slug.into()).or_default();
        others.retain(|id| *id != target.link_id && *id != shadowed);
        others.push(shadowed);
    }

    /// Removes a slug from a link and lets it find the latest other link that has it.
    fn remove_slug(&self, writer: &mut WriterState, slug: &str, id: LinkId) {
        let is_found = self.slugs.find(Key::Slug(slug)).is_some_and(|found| found.link_id == id);
        let Some(others) = writer.shadowed.get_mut(slug) else {
            if is_found {
                self.slugs.remove(Key::Slug(slug));
            }
            return;
        };
        if is_found && let Some(next) = others.iter().max().and_then(|next| self.ids.find(Key::Id(*next))) {
            others.retain(|other| *other != next.link_id);
            self.slugs.put(next);
        } else {
            others.retain(|other| *other != id);
        }
        if others.is_empty() {
            writer.shadowed.remove(slug);
        }
    }

    fn count(&self, applied: Applied) -> Applied {
        if applied == Applied::Changed {
            self.changes.fetch_add(1, Ordering::Release);
        }
        applied
    }
}

/// Decodes a record of a link.
fn decode(value: &[u8]) -> Result<LinkRecord, DecodeError> {
    // Nearly all records are live links. LinkRecord::decode parses each of them twice.
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

    use super::super::link;
    use super::*;

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
            workspace_id: None,
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

    /// Applies the records and returns the links that the slugs `s` and `t` find.
    fn after(records: &[Vec<u8>]) -> (Option<LinkId>, Option<LinkId>) {
        let table = table(records);
        let find = |slug| table.find(slug).map(|target| target.link_id);
        (find("s"), find("t"))
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
        // Compaction may leave only the deletion.
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
    fn an_invalid_record_changes_nothing() {
        let table = table(&[live(1, 1, "s")]);
        let later = String::from_utf8(live(1, 2, "t")).unwrap().replacen("\"v\":1", "\"v\":9", 1);
        assert!(matches!(
            table.apply(b"key", Some(later.as_bytes())),
            Err(RecordError::Decode(DecodeError::UnknownVersion(9)))
        ));
        assert!(matches!(table.apply(b"key", Some(b"\xff")), Err(RecordError::Decode(_))));
        assert!(matches!(table.apply(b"key", None), Err(RecordError::NoValue)));
        let status = String::from_utf8(live(1, 2, "t")).unwrap().replace("302", "200");
        assert!(matches!(table.apply(b"key", Some(status.as_bytes())), Err(RecordError::Status { .. })));
        assert_eq!(table.find("s").map(|target| target.link_id), Some(id(1)));
        assert!(table.find("t").is_none());
        assert_eq!((table.len(), table.changes()), (1, 1));
    }

    #[test]
    fn edge_tokens_are_not_counted_as_links() {
        let table = Table::default();
        let fixture = include_bytes!("../../../schemas/fixtures/edge_token.v1.json").trim_ascii();
        let key = EdgeToken::decode(fixture).unwrap().key();
        assert_eq!(table.apply(key.as_bytes(), Some(fixture)).unwrap(), Applied::Changed);
        assert!(matches!(table.apply(key.as_bytes(), Some(b"{}")), Err(RecordError::Decode(_))));
        assert_eq!((table.len(), table.known()), (0, 1));
    }

    /// Returns links with their revisions; every record of a revision has the same content.
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
                // Each record at least once, some more often, in any order.
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
                    // The map is ordered by id, so links that were created later overwrite earlier ones.
                    expected.insert(slug.clone(), id(*number));
                }
            }
            let encoded: Vec<_> = records
                .iter()
                .map(|(number, revision, slug)| match slug {
                    Some(slug) => live(*number, *revision, slug),
                    None => deleted(*number, *revision),
                })
                .collect();
            let table = table(order.iter().map(|index| &encoded[*index]));
            for slug in ["a", "b", "c"] {
                prop_assert_eq!(table.find(slug).map(|target| target.link_id), expected.get(slug).copied());
            }
            for (number, slug) in &newest {
                let known = table.find_by_id(id(*number)).map(|target| target.slug().to_owned());
                prop_assert_eq!(&known, slug);
            }
            prop_assert_eq!(table.len(), newest.values().flatten().count());
            prop_assert_eq!(table.known(), newest.len());
            let shadowed = newest.values().flatten().count() - expected.len();
            prop_assert_eq!(table.writer.lock().shadowed.values().map(Vec::len).sum::<usize>(), shadowed);
        }
    }
}
