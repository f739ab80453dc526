//! A link as the edge keeps it.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{ForwardQuery, Link};
use url::{Position, Url};

use crate::destination::push_safe;
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

/// Returns a destination with the characters encoded that a header may not contain: a host in punycode, and others as
/// the bytes of their UTF-8. The rest is the owner's text, which a URL parser would rewrite.
fn header_safe(destination: &str) -> Result<Cow<'_, str>, url::ParseError> {
    let url = Url::parse(destination)?;
    if destination.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Cow::Borrowed(destination));
    }
    let Some((scheme, authority, rest)) = parts(destination) else {
        return Ok(Cow::Owned(url.into()));
    };
    let mut safe = format!("{scheme}://");
    if authority.is_ascii() {
        push_safe(&mut safe, authority);
    } else {
        safe.push_str(&url[Position::BeforeUsername..Position::AfterHost]);
        let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
        if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) {
            safe.push(':');
            safe.push_str(port);
        }
    }
    push_safe(&mut safe, rest);
    Ok(Cow::Owned(safe))
}

/// Splits a URL behind its scheme and behind its host. `None` for one that parsers repair: older links have such
/// destinations, with a backslash for a slash for example, and only the parser's form of them is unambiguous.
fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let is_repaired = url.contains(|c: char| c == '\\' || c.is_control() || c.is_whitespace());
    let (scheme, rest) = url.split_once("://").filter(|_| !is_repaired)?;
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let is_scheme = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_scheme && !authority.is_empty()).then_some((scheme, authority, rest))
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
    fn only_what_is_unfit_for_a_header_is_encoded() {
        for (given, expected) in [
            ("https://a.example/%7e/../x?a=%2f#e", "https://a.example/%7e/../x?a=%2f#e"),
            ("https://bücher.example/ü?q=ü", "https://xn--bcher-kva.example/%C3%BC?q=%C3%BC"),
            ("HTTPS://A.example:443/a/../ü'?x='&%7e#é", "HTTPS://A.example:443/a/../%C3%BC'?x='&%7e#%C3%A9"),
            ("https://Bücher.example:443?ü", "https://xn--bcher-kva.example:443?%C3%BC"),
            ("https://bücher.example:/'", "https://xn--bcher-kva.example/'"),
            ("https://ü@a.example:8443/", "https://%C3%BC@a.example:8443/"),
            ("https://[2001:db8::1]:443/ü", "https://[2001:db8::1]:443/%C3%BC"),
            ("https://example。com/", "https://example.com/"),
            // As the parser repairs it.
            ("https:/a.example/ü", "https://a.example/%C3%BC"),
            ("https:///bücher.example/x", "https://xn--bcher-kva.example/x"),
            ("https://a.example:8443\\ü/x", "https://a.example:8443/%C3%BC/x"),
            ("https://ü.example\\@b.example:99/x", "https://xn--tda.example/@b.example:99/x"),
            (" https://a.exam\tple:443/ü?q=ü b", "https://a.example/%C3%BC?q=%C3%BC%20b"),
        ] {
            assert_eq!(header_safe(given).unwrap(), expected);
        }
    }
}
