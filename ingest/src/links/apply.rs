//! The rules by which a record of topic `links` changes the links in memory.

use std::{borrow::Cow, collections::HashMap};

use schemas::{
    id::LinkId,
    message::{DecodeError, EdgeToken, Link, LinkRecord, Message as _},
};
use url::Url;

use super::{Links, Target};

/// What a record did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It changed a link.
    Changed,
    /// It was older than what is known of its link.
    Older,
    /// It is not about a link.
    Skipped,
}

/// Why a record cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The bytes are no link.
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
}

/// The only one who changes the [`Links`], and what it must remember to do so.
#[derive(Debug)]
pub struct Writer {
    links: Links,
    known: HashMap<LinkId, Known>,
    live: usize,
}

/// The newest state of a link, deleted ones included: an older record must not bring it back.
#[derive(Debug, Clone)]
struct Known {
    revision: u64,
    /// `None` when the link was deleted.
    slug: Option<Box<str>>,
}

impl Writer {
    pub(super) fn new(links: Links) -> Self {
        Self { links, known: HashMap::new(), live: 0 }
    }

    /// Returns how many links are not deleted.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Returns whether every known link is deleted.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Applies one record.
    ///
    /// # Errors
    /// When it cannot be read; nothing has changed then.
    pub fn apply(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<Applied, Unreadable> {
        if key.starts_with(EdgeToken::KEY_PREFIX.as_bytes()) {
            return Ok(Applied::Skipped);
        }
        let record = LinkRecord::decode(value.ok_or(Unreadable::NoValue)?)?;
        let (id, revision) = match &record {
            LinkRecord::Live(link) => (link.id, link.revision),
            LinkRecord::Deleted(link) => (link.id, link.revision),
        };
        let before = self.known.get(&id);
        if before.is_some_and(|known| revision <= known.revision) {
            return Ok(Applied::Older);
        }
        let before = before.and_then(|known| known.slug.clone());

        let after = match record {
            LinkRecord::Deleted(_) => None,
            LinkRecord::Live(link) => {
                let slug: Box<str> = link.slug.as_str().into();
                self.links.set(&slug, target(link)?);
                Some(slug)
            }
        };
        if let Some(slug) = &before
            && after.as_ref() != Some(slug)
        {
            // Another link may have taken the slug over already.
            self.links.clear(slug, id);
        }
        self.live = self.live + usize::from(after.is_some()) - usize::from(before.is_some());
        self.known.insert(id, Known { revision, slug: after });
        Ok(Applied::Changed)
    }
}

fn target(link: Link) -> Result<Target, Unreadable> {
    if !matches!(link.redirect_status, 301 | 302 | 307 | 308) {
        return Err(Unreadable::Status { link: link.id, status: link.redirect_status });
    }
    let destination = header_safe(&link.destination)
        .map_err(|source| Unreadable::Destination { link: link.id, source })?
        .into();
    Ok(Target {
        link_id: link.id,
        workspace_id: link.workspace_id,
        destination,
        redirect_status: link.redirect_status,
        is_active: link.is_active,
        forward_query: link.forward_query,
        append_click_id: link.append_click_id,
        expires_at: link.expires_at,
    })
}

/// Returns a destination as it was given, or, when a header could not carry it, as a browser would write it.
fn header_safe(destination: &str) -> Result<Cow<'_, str>, url::ParseError> {
    let url = Url::parse(destination)?;
    Ok(if destination.bytes().all(|byte| byte.is_ascii_graphic()) {
        Cow::Borrowed(destination)
    } else {
        Cow::Owned(url.into())
    })
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use schemas::{
        id::WorkspaceId,
        message::{DeletedLink, ForwardQuery},
    };
    use uuid::Uuid;

    use super::*;

    fn id(number: u128) -> LinkId {
        LinkId::from_uuid(Uuid::from_u128(number))
    }

    fn live(number: u128, revision: u64, slug: &str) -> Vec<u8> {
        to(number, revision, slug, "https://a.example/")
    }

    fn to(number: u128, revision: u64, slug: &str, destination: &str) -> Vec<u8> {
        LinkRecord::Live(Link {
            version: Default::default(),
            id: id(number),
            revision,
            workspace_id: WorkspaceId::from_uuid(Uuid::from_u128(1)),
            slug: slug.to_owned(),
            destination: destination.to_owned(),
            is_active: true,
            redirect_status: 302,
            forward_query: ForwardQuery::Append,
            append_click_id: true,
            expires_at: None,
        })
        .encode()
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

    /// Applies the records and returns what the slugs `s` and `t` lead to.
    fn after(records: &[Vec<u8>]) -> (Option<LinkId>, Option<LinkId>) {
        let (links, mut writer) = Links::new();
        for record in records {
            writer.apply(b"key", Some(record)).unwrap();
        }
        let lead = |slug| links.find(slug).map(|target| target.link_id);
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
        assert_eq!(after(&[live(1, 1, "s"), live(1, 2, "t"), live(2, 1, "s")]), (Some(id(2)), Some(id(1))));
        assert_eq!(after(&[live(1, 1, "s"), live(2, 1, "s"), live(1, 2, "t")]), (Some(id(2)), Some(id(1))));
    }

    #[test]
    fn what_cannot_be_read_changes_nothing() {
        let (links, mut writer) = Links::new();
        writer.apply(b"key", Some(&live(1, 1, "s"))).unwrap();
        let later = String::from_utf8(live(1, 2, "t")).unwrap().replacen("\"v\":1", "\"v\":9", 1);
        assert!(matches!(
            writer.apply(b"key", Some(later.as_bytes())),
            Err(Unreadable::Decode(DecodeError::UnknownVersion(9)))
        ));
        assert!(matches!(writer.apply(b"key", Some(b"\xff")), Err(Unreadable::Decode(_))));
        assert!(matches!(writer.apply(b"key", None), Err(Unreadable::NoValue)));
        assert!(matches!(
            writer.apply(b"key", Some(&to(1, 2, "t", "no url"))),
            Err(Unreadable::Destination { .. })
        ));
        let status = String::from_utf8(live(1, 2, "t")).unwrap().replace("302", "200");
        assert!(matches!(writer.apply(b"key", Some(status.as_bytes())), Err(Unreadable::Status { .. })));
        assert_eq!(links.find("s").map(|target| target.link_id), Some(id(1)));
        assert!(links.find("t").is_none());
        assert_eq!(writer.len(), 1);
    }

    #[test]
    fn edge_tokens_are_no_links() {
        let (_, mut writer) = Links::new();
        let key = format!("{}x", EdgeToken::KEY_PREFIX);
        assert_eq!(writer.apply(key.as_bytes(), Some(b"anything")).unwrap(), Applied::Skipped);
    }

    #[test]
    fn a_destination_is_kept_unless_a_header_cannot_carry_it() {
        for (given, kept) in [
            ("https://a.example/%7e/../x?a=%2f#e", "https://a.example/%7e/../x?a=%2f#e"),
            ("https://bücher.example/ü?q=ü b", "https://xn--bcher-kva.example/%C3%BC?q=%C3%BC%20b"),
        ] {
            assert_eq!(header_safe(given).unwrap(), kept);
        }
    }
}
