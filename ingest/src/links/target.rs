//! A link as the edge keeps it.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{ForwardQuery, Link};
use url::Url;

use crate::links::record::RecordError;

/// The fields of a link that a redirect needs, in few bytes: there may be millions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The link.
    pub link_id: LinkId,
    /// The link's workspace.
    pub workspace_id: WorkspaceId,
    /// Raised by one with each change of the link.
    pub revision: u64,
    /// The link answers 410 from this time on.
    pub expires_at: Option<DateTime<Utc>>,
    /// 301, 302, 307 or 308.
    pub redirect_status: u16,
    /// Whether the link redirects; if not, it answers 404.
    pub is_active: bool,
    /// Whether an operator disabled it: it answers 410.
    pub is_blocked: bool,
    /// What happens to the visited URL's query.
    pub forward_query: ForwardQuery,
    /// Whether the redirect appends the click's id to the destination.
    pub append_click_id: bool,
    slug_len: u16,
    /// Slug and destination in one allocation, which saves about two dozen bytes per link.
    text: Box<str>,
}

// There may be millions.
const _: () = assert!(size_of::<Target>() <= 80);

impl Target {
    /// Returns the path segment of the short URL.
    pub fn slug(&self) -> &str {
        &self.text[..self.slug_len.into()]
    }

    /// Returns the destination; it contains only characters that a header may contain.
    pub fn destination(&self) -> &str {
        &self.text[self.slug_len.into()..]
    }
}

impl TryFrom<Link> for Target {
    type Error = RecordError;

    fn try_from(link: Link) -> Result<Self, RecordError> {
        if !matches!(link.redirect_status, 301 | 302 | 307 | 308) {
            return Err(RecordError::Status { link: link.id, status: link.redirect_status });
        }
        let destination = header_safe(&link.destination)
            .map_err(|source| RecordError::Destination { link: link.id, source })?;
        let slug_len = u16::try_from(link.slug.len()).map_err(|_| RecordError::Slug { link: link.id })?;
        let mut text = String::with_capacity(link.slug.len() + destination.len());
        text.push_str(&link.slug);
        text.push_str(&destination);
        Ok(Self {
            link_id: link.id,
            workspace_id: link.workspace_id,
            revision: link.revision,
            expires_at: link.expires_at,
            redirect_status: link.redirect_status,
            is_active: link.is_active,
            is_blocked: link.is_blocked,
            forward_query: link.forward_query,
            append_click_id: link.append_click_id,
            slug_len,
            text: text.into_boxed_str(),
        })
    }
}

/// Returns a destination unchanged, or, if it contains characters that a header may not, normalized by the URL parser.
fn header_safe(destination: &str) -> Result<Cow<'_, str>, url::ParseError> {
    let url = Url::parse(destination)?;
    Ok(if destination.bytes().all(|byte| byte.is_ascii_graphic()) {
        Cow::Borrowed(destination)
    } else {
        Cow::Owned(url.into())
    })
}

/// Returns a link with the API's defaults: active, 302, query forwarded, click id appended.
#[cfg(test)]
pub(crate) fn link(number: u128, revision: u64, slug: &str, destination: &str) -> Link {
    Link {
        version: Default::default(),
        id: LinkId::from_uuid(uuid::Uuid::from_u128(number)),
        revision,
        workspace_id: WorkspaceId::from_uuid(uuid::Uuid::from_u128(1)),
        slug: slug.to_owned(),
        destination: destination.to_owned(),
        is_active: true,
        redirect_status: 302,
        forward_query: ForwardQuery::Append,
        append_click_id: true,
        expires_at: None,
        is_blocked: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slug_and_destination_are_kept_apart() {
        for slug in ["s", "", "früh"] {
            let target = Target::try_from(link(1, 1, slug, "https://a.example/")).unwrap();
            assert_eq!((target.slug(), target.destination()), (slug, "https://a.example/"));
        }
    }

    #[test]
    fn a_link_that_cannot_redirect_is_rejected() {
        let rejected = |link: Link| Target::try_from(link).unwrap_err();
        assert!(matches!(rejected(link(1, 1, "s", "no url")), RecordError::Destination { .. }));
        let status = Link { redirect_status: 200, ..link(1, 1, "s", "https://a.example/") };
        assert!(matches!(rejected(status), RecordError::Status { status: 200, .. }));
        let slug = "s".repeat(usize::from(u16::MAX) + 1);
        assert!(matches!(rejected(link(1, 1, &slug, "https://a.example/")), RecordError::Slug { .. }));
    }

    #[test]
    fn a_destination_is_unchanged_unless_unfit_for_a_header() {
        for (given, expected) in [
            ("https://a.example/%7e/../x?a=%2f#e", "https://a.example/%7e/../x?a=%2f#e"),
            ("https://bücher.example/ü?q=ü b", "https://xn--bcher-kva.example/%C3%BC?q=%C3%BC%20b"),
        ] {
            assert_eq!(header_safe(given).unwrap(), expected);
        }
    }
}
