//! A click, from what is known of the request that made it.

use std::{borrow::Cow, net::IpAddr};

use chrono::{DateTime, Utc};
use http::{
    HeaderMap,
    header::{REFERER, USER_AGENT},
};
use schemas::message::Click;
use url::Url;

use crate::{
    agent::Agent,
    links::Target,
    redirect::destination::{self, CLICK_ID},
    visitor::VisitorKey,
};

/// How many bytes of any text that a visitor sends are kept.
const TEXT_BYTES: usize = 256;

/// A request for a link, with all that the click needs of it.
#[derive(Debug, Clone, Copy)]
pub struct Visit<'a> {
    /// The slug that was asked for.
    pub slug: &'a str,
    /// The short URL's query.
    pub query: Option<&'a str>,
    /// The request's headers.
    pub headers: &'a HeaderMap,
    /// The client; it leaves no trace but the visitor.
    pub address: IpAddr,
    /// When it was answered.
    pub at: DateTime<Utc>,
}

impl Visit<'_> {
    /// Makes the click of a visit to `target`.
    ///
    /// No header and no query makes it fail: what cannot be read is left out, what is too long is cut.
    pub fn click(&self, target: &Target, click_id: String, key: &VisitorKey) -> Click {
        let sent_agent = self.headers.get(USER_AGENT).map_or(&b""[..], |value| value.as_bytes());
        let user_agent = Some(cut(String::from_utf8_lossy(sent_agent))).filter(|text| !text.is_empty());
        let agent = Agent::read(self.headers, user_agent.as_deref());
        let own = destination::query(&target.destination);
        let utm = |name| {
            let of = |query| destination::parameter(query, name);
            self.query.and_then(of).or_else(|| own.and_then(of)).map(cut)
        };
        Click {
            version: Default::default(),
            click_id,
            link_id: target.link_id,
            workspace_id: target.workspace_id,
            slug: self.slug.to_owned(),
            occurred_at: self.at,
            class: agent.class,
            // The whole User-Agent counts, not what is kept of it.
            visitor: key.visitor(target.workspace_id, self.address, sent_agent),
            // Nothing here can tell a country from an address yet.
            country: None,
            device_type: Some(agent.device_type.to_owned()),
            browser: agent.browser.map(str::to_owned),
            os: agent.os.map(str::to_owned),
            referrer: referrer(self.headers),
            utm_source: utm("utm_source"),
            utm_medium: utm("utm_medium"),
            utm_campaign: utm("utm_campaign"),
            utm_term: utm("utm_term"),
            utm_content: utm("utm_content"),
            external_click_id: self.query.and_then(|query| destination::parameter(query, CLICK_ID)).map(cut),
            user_agent,
            purpose: agent.purpose,
            again: false,
        }
    }
}

/// Returns the host of the page that the visitor comes from.
fn referrer(headers: &HeaderMap) -> Option<String> {
    let sent = String::from_utf8_lossy(headers.get(REFERER)?.as_bytes());
    let host = Url::parse(sent.trim()).ok()?.host_str()?.to_owned();
    Some(cut(host.into())).filter(|host| !host.is_empty())
}

fn cut(text: Cow<'_, str>) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES);
    let mut text = text.into_owned();
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use schemas::{
        id::{LinkId, WorkspaceId},
        message::{Class, ForwardQuery, Message as _},
    };
    use uuid::Uuid;

    use super::*;
    use crate::spool::record::MAX_LEN;

    fn target(destination: &str) -> Target {
        Target {
            link_id: LinkId::from_uuid(Uuid::from_u128(1)),
            workspace_id: WorkspaceId::from_uuid(Uuid::from_u128(2)),
            destination: destination.into(),
            redirect_status: 302,
            is_active: true,
            forward_query: ForwardQuery::Append,
            append_click_id: true,
            expires_at: None,
        }
    }

    fn click(destination: &str, query: &str, headers: &[(&'static str, &[u8])]) -> Click {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_bytes(value).unwrap()))
            .collect();
        let visit = Visit {
            slug: "spring",
            query: Some(query),
            headers: &headers,
            address: "192.0.2.7".parse().unwrap(),
            at: DateTime::UNIX_EPOCH,
        };
        visit.click(&target(destination), "id".to_owned(), &VisitorKey::new(&[7; 32]))
    }

    #[test]
    fn a_click_says_what_the_request_said() {
        let click = click(
            "https://a.example/?utm_source=own&utm_term=shoes",
            "utm_source=mail&utm_campaign=Fr%C3%BChling&click_id=theirs&click_id=second",
            &[("user-agent", b"Mozilla/5.0 Firefox/140.0"), ("referer", b"https://News.Example/a?secret=1")],
        );
        assert_eq!(click.class, Class::Human);
        assert_eq!(click.referrer.as_deref(), Some("news.example"));
        assert_eq!(click.utm_source.as_deref(), Some("mail"));
        assert_eq!(click.utm_campaign.as_deref(), Some("Frühling"));
        assert_eq!(click.utm_term.as_deref(), Some("shoes"));
        assert_eq!(click.utm_content, None);
        assert_eq!(click.external_click_id.as_deref(), Some("theirs"));
        assert!(!click.again);
    }

    #[test]
    fn no_address_is_in_a_click() {
        let text = String::from_utf8(click("https://a.example/", "", &[]).encode()).unwrap();
        assert!(!text.contains("192.0.2.7"), "{text}");
    }

    #[test]
    fn headers_that_are_not_text_are_read_as_well_as_they_can_be() {
        let click = click(
            "https://a.example/",
            "",
            &[("user-agent", b"Mozilla/5.0 \xff"), ("referer", b"https://n.example/\xff")],
        );
        assert_eq!(click.user_agent.as_deref(), Some("Mozilla/5.0 \u{fffd}"));
        assert_eq!(click.referrer.as_deref(), Some("n.example"));
    }

    #[test]
    fn whatever_is_sent_a_click_fits_into_the_spool() {
        let long = "%00%01".repeat(10_000);
        let query = ["utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content", "click_id"]
            .map(|name| format!("{name}={long}"))
            .join("&");
        let header = vec![b'"'; 30_000];
        let referrer = [&b"https://"[..], &[b'a'; 30_000]].concat();
        let headers = [("user-agent", &header[..]), ("referer", &referrer[..]), ("purpose", &header[..])];
        let encoded = click("https://a.example/", &query, &headers).encode();
        assert!(encoded.len() < MAX_LEN / 8, "{} bytes", encoded.len());
    }
}
