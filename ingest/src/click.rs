//! Creates the click of a visit.

use std::borrow::Cow;
use std::net::IpAddr;

use chrono::{DateTime, Utc};
use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderName};
use rand::Rng as _;
use schemas::message::{self, Click};
use schemas::referrer::normalize;
use service::agent::{self, Agents, READ_BYTES, TEXT_BYTES};
use url::Url;

use crate::country::Countries;
use crate::destination::{self, CLICK_ID};
use crate::links::Target;
use crate::visitor::VisitorKey;

/// The maximum length of a stored purpose, in bytes.
const PURPOSE_BYTES: usize = 64;

/// How many bytes of a referrer are parsed. Its host is at the beginning.
const REFERRER_BYTES: usize = 2_048;

/// Headers that browsers set on prefetches and previews.
const PURPOSES: [HeaderName; 4] = [
    HeaderName::from_static("sec-purpose"),
    HeaderName::from_static("purpose"),
    HeaderName::from_static("x-purpose"),
    HeaderName::from_static("x-moz"),
];

/// Global Privacy Control and the older Do Not Track: `1` asks not to be tracked.
const PRIVACY_SIGNALS: [HeaderName; 2] = [HeaderName::from_static("sec-gpc"), HeaderName::from_static("dnt")];

/// The parameters that a click stores, in the order of [`Parameters`].
const PARAMETERS: [&str; 6] =
    ["utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content", CLICK_ID];

/// The values of [`PARAMETERS`], decoded and truncated.
type Parameters = [Option<String>; PARAMETERS.len()];

/// A request for a link. Missing headers are empty. Header values are bytes, because clients may send any bytes.
#[derive(Debug, Clone, Copy)]
pub struct Visit<'a> {
    /// The requested slug.
    pub slug: &'a str,
    /// The short URL's query.
    pub query: Option<&'a str>,
    /// The `User-Agent`.
    pub user_agent: &'a [u8],
    /// The `Referer`.
    pub referrer: &'a [u8],
    /// The value of the first of `Sec-Purpose`, `Purpose`, `X-Purpose` and `X-Moz` that is present, or
    /// [`agent::OVER_LIMIT`].
    pub purpose: &'a [u8],
    /// Whether the request has `Sec-GPC: 1` or `DNT: 1`.
    pub asks_for_privacy: bool,
    /// The client's address. Only country and visitor are derived from it; it is not stored.
    pub address: IpAddr,
    /// When the request was answered.
    pub at: DateTime<Utc>,
}

impl<'a> Visit<'a> {
    /// Creates a visit from a request's headers.
    pub fn new(
        slug: &'a str,
        query: Option<&'a str>,
        headers: &'a HeaderMap,
        address: IpAddr,
        at: DateTime<Utc>,
    ) -> Self {
        let header = |name: &HeaderName| headers.get(name).map(|value| value.as_bytes());
        Self {
            slug,
            query,
            user_agent: header(&USER_AGENT).unwrap_or_default(),
            referrer: header(&REFERER).unwrap_or_default(),
            purpose: PURPOSES.iter().find_map(header).unwrap_or_default(),
            asks_for_privacy: PRIVACY_SIGNALS.iter().any(|name| header(name) == Some(b"1")),
            address,
            at,
        }
    }
}

/// Creates clicks from visits.
#[derive(Debug)]
pub struct Clicks {
    /// Classifies User-Agents.
    pub agents: Agents,
    /// Finds the country of an address.
    pub countries: Countries,
    /// Derives the visitor from an address and a User-Agent.
    pub visitors: VisitorKey,
    /// Whether clicks that ask for privacy lack some fields; `docs/reference/visitors.md` lists them.
    pub respect_privacy_signals: bool,
}

impl Clicks {
    /// Creates the click of a visit to `target`.
    ///
    /// Accepts any input: leaves out what cannot be parsed and truncates what is too long.
    pub fn click(&self, visit: &Visit<'_>, target: &Target, click_id: String) -> Click {
        let private = self.respect_privacy_signals && visit.asks_for_privacy;
        let whole = &visit.user_agent[..visit.user_agent.len().min(READ_BYTES)];
        let whole = String::from_utf8_lossy(whole);
        let mut purpose = purpose(visit.purpose);
        let agent = self.agents.read(&whole, purpose.as_deref());
        let is_long = whole.len() > TEXT_BYTES;
        let user_agent = cut(whole, TEXT_BYTES);
        // A recount reads only what is stored. The purpose that is replaced here has no effect on the class.
        if is_long && self.agents.read(&user_agent, purpose.as_deref()).class != agent.class {
            let mark = if agent.class == agent::Class::Preview { agent::PREVIEW } else { agent::BOT };
            purpose = Some(mark.to_owned());
        }
        let [utm_source, utm_medium, utm_campaign, utm_term, utm_content, external_click_id] =
            parameters(visit.query, target.destination());
        Click {
            version: Default::default(),
            click_id,
            link_id: target.link_id,
            workspace_id: target.workspace_id,
            slug: visit.slug.to_owned(),
            occurred_at: visit.at,
            class: class(agent.class),
            visitor: if private {
                // Random, so that no other click has the same visitor.
                rand::rng().random()
            } else {
                // The whole User-Agent, not the truncated one.
                self.visitors.visitor(target.workspace_id, visit.address, visit.user_agent, visit.at)
            },
            country: self.countries.find(visit.address).filter(|_| !private),
            device_type: Some(agent.device_type.to_owned()),
            browser: agent.browser.as_deref().map(str::to_owned),
            os: agent.os.as_deref().map(str::to_owned),
            referrer: referrer(visit.referrer),
            utm_source,
            utm_medium,
            utm_campaign,
            utm_term,
            utm_content,
            // It may identify the person across clicks.
            external_click_id: external_click_id.filter(|_| !private),
            user_agent: Some(user_agent).filter(|text| !text.is_empty() && !private),
            purpose,
            again: false,
        }
    }
}

fn class(class: agent::Class) -> message::Class {
    match class {
        agent::Class::Human => message::Class::Human,
        agent::Class::Bot => message::Class::Bot,
        agent::Class::Preview => message::Class::Preview,
    }
}

/// Returns a purpose as text, truncated.
fn purpose(header: &[u8]) -> Option<String> {
    let cut = &header[..header.len().min(PURPOSE_BYTES)];
    Some(String::from_utf8_lossy(cut).trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the stored parameters: those of the visited URL, and for missing ones those of the destination.
///
/// A `click_id` in the destination is part of the link and not of the visit, so it is ignored.
fn parameters(visited: Option<&str>, destination: &str) -> Parameters {
    let mut values = Parameters::default();
    fill_missing(&mut values, visited.unwrap_or_default());
    let external = values[PARAMETERS.len() - 1].take();
    fill_missing(&mut values, destination::query(destination).unwrap_or_default());
    values[PARAMETERS.len() - 1] = external;
    values
}

/// Fills missing values from a query. The first value of a parameter that is not empty counts.
fn fill_missing(values: &mut Parameters, query: &str) {
    for (name, value) in destination::parameters(query) {
        if let Some(index) = PARAMETERS.iter().position(|stored| *stored == name)
            && values[index].is_none()
            && !value.is_empty()
        {
            values[index] = Some(cut(destination::decode(value), TEXT_BYTES));
        }
    }
}

/// Returns the host of a `Referer`, in the one spelling of its site.
fn referrer(header: &[u8]) -> Option<String> {
    if let Some(host) = plain_host(header) {
        return Some(normalize(host).into_owned());
    }
    let text = String::from_utf8_lossy(&header[..header.len().min(REFERRER_BYTES)]);
    let url = Url::parse(text.trim()).ok()?;
    let host = cut(url.host_str()?.into(), TEXT_BYTES);
    Some(normalize(&host).into_owned()).filter(|host| !host.is_empty())
}

/// Returns the host of a URL without parsing all of it, if the parser would return the same host. Covers nearly every
/// URL that browsers send.
fn plain_host(url: &[u8]) -> Option<&str> {
    let rest = url.strip_prefix(b"https://").or_else(|| url.strip_prefix(b"http://"))?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let host = &rest[..end];
    let is_plain =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    // The parser treats a host whose last part is a number as an IPv4 address, and rejects some punycode names.
    let last = host.rsplit(|byte| *byte == b'.').next()?;
    let is_name = last.first()?.is_ascii_lowercase() && !host.windows(4).any(|part| part == b"xn--");
    (host.len() <= TEXT_BYTES && is_name && host.iter().all(is_plain)).then_some(host)?;
    std::str::from_utf8(host).ok()
}

fn cut(text: Cow<'_, str>, bytes: usize) -> String {
    let end = text.floor_char_boundary(bytes);
    match text {
        Cow::Borrowed(text) => text[..end].to_owned(),
        Cow::Owned(mut text) => {
            text.truncate(end);
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;
    use schemas::message::{Class, Message as _};

    use super::*;
    use crate::links::link;
    use crate::spool::record::MAX_LEN;
    use crate::visitor::Rotation;

    fn target(destination: &str) -> Target {
        Target::try_from(link(1, 1, "spring", destination)).unwrap()
    }

    fn header_map(headers: &[(&'static str, &[u8])]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &[u8])| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap())
        };
        headers.iter().map(header).collect()
    }

    fn click(destination: &str, query: &str, headers: &[(&'static str, &[u8])]) -> Click {
        let headers = header_map(headers);
        clicks(false).click(&visit(query, &headers), &target(destination), "id".to_owned())
    }

    fn clicks(respect_privacy_signals: bool) -> Clicks {
        Clicks {
            agents: Agents::built_in(),
            countries: Countries::default(),
            visitors: VisitorKey::new(&[7; 32], Rotation::Never),
            respect_privacy_signals,
        }
    }

    fn visit<'a>(query: &'a str, headers: &'a HeaderMap) -> Visit<'a> {
        let address = "192.0.2.7".parse().unwrap();
        Visit::new("spring", Some(query), headers, address, DateTime::UNIX_EPOCH)
    }

    #[test]
    fn a_click_has_the_fields_of_the_request() {
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
    fn a_click_does_not_contain_the_address() {
        let text = String::from_utf8(click("https://a.example/", "", &[]).encode()).unwrap();
        assert!(!text.contains("192.0.2.7"), "{text}");
    }

    #[test]
    fn headers_that_are_not_utf8_are_read_lossily() {
        let click = click(
            "https://a.example/",
            "",
            &[("user-agent", b"Mozilla/5.0 \xff"), ("referer", b"https://n.example/\xff")],
        );
        assert_eq!(click.user_agent.as_deref(), Some("Mozilla/5.0 \u{fffd}"));
        assert_eq!(click.referrer.as_deref(), Some("n.example"));
    }

    #[test]
    fn the_largest_click_fits_into_the_spool() {
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

    #[test]
    fn a_prefetch_is_a_preview_and_keeps_its_purpose() {
        for (name, value) in [
            ("sec-purpose", "prefetch;prerender"),
            ("purpose", "prefetch"),
            ("x-purpose", "preview"),
            ("x-moz", "prefetch"),
        ] {
            let headers = [("user-agent", &b"Mozilla/5.0 Firefox/140.0"[..]), (name, value.as_bytes())];
            let click = click("https://a.example/", "", &headers);
            assert_eq!((click.class, click.purpose.as_deref()), (Class::Preview, Some(value)), "{name}");
        }
        let headers = [("user-agent", &b"Mozilla/5.0 Firefox/140.0"[..]), ("purpose", &[b'\xff'; 300])];
        let click = click("https://a.example/", "", &headers);
        assert_eq!(click.class, Class::Human);
        assert_eq!(click.purpose.unwrap().chars().count(), PURPOSE_BYTES);
    }

    #[test]
    fn a_click_is_recounted_with_the_class_of_the_whole_user_agent() {
        for (user_agent, purpose, class, stored) in [
            ("Firefox/140.0 PADDING somebot", "", Class::Bot, Some("bot")),
            ("Firefox/140.0 PADDING somebot", "navigate", Class::Bot, Some("bot")),
            ("Firefox/140.0 PADDING somebot", "prefetch", Class::Preview, Some("prefetch")),
            ("Firefox/140.0 PADDING somebot", agent::OVER_LIMIT, Class::Bot, Some(agent::OVER_LIMIT)),
            ("Firefox/140.0 PADDING Slackbot", "", Class::Preview, Some("preview")),
            ("somebot PADDING Slackbot", "", Class::Bot, None),
            ("Slackbot PADDING somebot", "", Class::Preview, None),
            ("PADDING Firefox/140.0", "", Class::Bot, None),
            ("Firefox/140.0 PADDING Abbott", "navigate", Class::Human, Some("navigate")),
        ] {
            let text = format!("Mozilla/5.0 {}", user_agent.replace("PADDING", &"x".repeat(300)));
            let headers = [("user-agent", text.as_bytes()), ("sec-purpose", purpose.as_bytes())];
            let click = click("https://a.example/", "", &headers);
            assert_eq!((click.class, click.purpose.as_deref()), (class, stored), "{user_agent} {purpose}");
            let (user_agent, purpose) = (click.user_agent.unwrap(), click.purpose);
            let recounted = Agents::built_in().read(&user_agent, purpose.as_deref());
            assert_eq!(super::class(recounted.class), class, "{user_agent} {purpose:?}");
            assert_eq!(user_agent, text[..TEXT_BYTES]);
        }
    }

    #[test]
    fn the_visited_url_wins_and_empty_values_are_skipped() {
        let click = click(
            "https://a.example/?utm_medium=own&click_id=own&utm_source=own#?utm_term=fragment",
            "utm_source=&utm_source=a%20b+c&utm_source=d&utm_medium=",
            &[],
        );
        assert_eq!(click.utm_source.as_deref(), Some("a b c"));
        assert_eq!(click.utm_medium.as_deref(), Some("own"));
        assert_eq!(click.utm_term, None);
        assert_eq!(click.external_click_id, None);
    }

    #[test]
    fn privacy_signals_count_only_if_the_operator_respects_them() {
        for (signal, value, private) in
            [("sec-gpc", &b"1"[..], true), ("dnt", b"1", true), ("dnt", b"0", false)]
        {
            let headers = header_map(&[("user-agent", b"Mozilla/5.0 Firefox/140.0"), (signal, value)]);
            let visit = visit("utm_source=mail&click_id=theirs", &headers);
            let target = target("https://a.example/");
            let click = |respect| clicks(respect).click(&visit, &target, "id".to_owned());
            assert_eq!(click(false).visitor, click(false).visitor);
            assert_eq!(click(false).external_click_id.as_deref(), Some("theirs"));
            let respected = click(true);
            assert_eq!(respected.visitor != click(true).visitor, private, "{signal}");
            assert_eq!(respected.user_agent.is_none(), private, "{signal}");
            assert_eq!(respected.external_click_id.is_none(), private, "{signal}");
            assert_eq!(respected.class, Class::Human);
            assert_eq!(respected.browser.as_deref(), Some("Firefox"));
            assert_eq!(respected.utm_source.as_deref(), Some("mail"));
        }
    }

    #[test]
    fn the_referrer_is_a_host_or_nothing() {
        for (header, host) in [
            ("https://news.example/story?x=1#y", Some("news.example")),
            ("http://news.example", Some("news.example")),
            ("https://news.example:8443/", Some("news.example")),
            ("https://NEWS.example/", Some("news.example")),
            ("https://www.news.example/story", Some("news.example")),
            ("https://WWW.News.example:8443/", Some("news.example")),
            ("https://www.com/", Some("www.com")),
            ("https://www./", Some("www")),
            ("https://News.Example./story", Some("news.example")),
            ("https://./", None),
            ("android-app://com.Example.Mail/", Some("com.example.mail")),
            ("ANDROID-APP://WWW.Example.Mail.", Some("example.mail")),
            ("https://www.bücher.example/", Some("xn--bcher-kva.example")),
            ("https://user:secret@news.example/", Some("news.example")),
            ("https://bücher.example/", Some("xn--bcher-kva.example")),
            ("https://0x7f.1/", Some("127.0.0.1")),
            ("https://[2001:db8::1]/", Some("[2001:db8::1]")),
            ("android-app://com.example.mail/", Some("com.example.mail")),
            ("about:blank", None),
            ("news.example", None),
            ("https://", None),
            ("", None),
        ] {
            assert_eq!(referrer(header.as_bytes()).as_deref(), host, "{header}");
        }
        let long = format!("https://news.example/{}", "%".repeat(100_000));
        assert_eq!(referrer(long.as_bytes()).as_deref(), Some("news.example"));
    }

    proptest! {
        #[test]
        fn a_plain_host_equals_the_parsers_host(
            host in "[a-z0-9.x-]{0,12}(xn--)?[a-z0-9.-]{0,8}", rest in "([/?#:@\\\\].{0,8})?", scheme in "https?://"
        ) {
            let url = format!("{scheme}{host}{rest}");
            if let Some(host) = plain_host(url.as_bytes()) {
                let parsed = Url::parse(&url).unwrap();
                prop_assert_eq!(parsed.host_str(), Some(host), "{}", url);
            }
        }
    }
}
