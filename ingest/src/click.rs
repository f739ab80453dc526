//! A click, from what is known of the visit that made it.

use std::{borrow::Cow, net::IpAddr};

use chrono::{DateTime, Utc};
use http::{
    HeaderMap, HeaderName,
    header::{REFERER, USER_AGENT},
};
use rand::Rng as _;
use schemas::message::{self, Click};
use schemas::referrer::without_www;
use service::agent::{self, Agents, TEXT_BYTES};
use url::Url;

use crate::{
    country::Countries,
    links::Target,
    redirect::destination::{self, CLICK_ID},
    visitor::VisitorKey,
};

/// How many bytes of a purpose are kept.
const PURPOSE_BYTES: usize = 64;

/// How many bytes of a referrer are looked at; its host stands at the beginning.
const REFERRER_BYTES: usize = 2_048;

/// Headers by which browsers mark a request that no person made yet.
const PURPOSES: [HeaderName; 4] = [
    HeaderName::from_static("sec-purpose"),
    HeaderName::from_static("purpose"),
    HeaderName::from_static("x-purpose"),
    HeaderName::from_static("x-moz"),
];

/// Global Privacy Control, and the older Do Not Track: `1` asks not to be followed.
const PRIVACY_SIGNALS: [HeaderName; 2] = [HeaderName::from_static("sec-gpc"), HeaderName::from_static("dnt")];

/// The parameters that a click keeps, in the order of [`Parameters`].
const PARAMETERS: [&str; 6] =
    ["utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content", CLICK_ID];

/// The values of [`PARAMETERS`], decoded and cut.
type Parameters = [Option<String>; PARAMETERS.len()];

/// Who came to a link, and how. What is missing is empty; bytes, because nothing makes anyone send text.
#[derive(Debug, Clone, Copy)]
pub struct Visit<'a> {
    /// The slug that was asked for.
    pub slug: &'a str,
    /// The short URL's query.
    pub query: Option<&'a str>,
    /// The `User-Agent`.
    pub user_agent: &'a [u8],
    /// The `Referer`.
    pub referrer: &'a [u8],
    /// What the request says that it is for.
    pub purpose: &'a [u8],
    /// Whether it asks not to be followed: `Sec-GPC: 1` or `DNT: 1`.
    pub asks_for_privacy: bool,
    /// The client; it leaves no trace but country and visitor.
    pub address: IpAddr,
    /// When it was answered.
    pub at: DateTime<Utc>,
}

impl<'a> Visit<'a> {
    /// Takes from a request's headers what they say.
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

/// Makes clicks of visits.
#[derive(Debug)]
pub struct Clicks {
    /// Tells people from programs.
    pub agents: Agents,
    /// Tells countries by addresses.
    pub countries: Countries,
    /// Turns addresses into visitors.
    pub visitors: VisitorKey,
    /// Whether those who ask not to be followed are not; `docs/privacy.md` says what their clicks lack.
    pub respect_privacy_signals: bool,
}

impl Clicks {
    /// Makes the click of a visit to `target`.
    ///
    /// Nothing that is sent makes it fail: what cannot be read is left out, what is too long is cut.
    pub fn click(&self, visit: &Visit<'_>, target: &Target, click_id: String) -> Click {
        let private = self.respect_privacy_signals && visit.asks_for_privacy;
        let user_agent = cut(String::from_utf8_lossy(visit.user_agent), TEXT_BYTES);
        let purpose = purpose(visit.purpose);
        let agent = self.agents.read(&user_agent, purpose.as_deref());
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
                // Of this click alone: no second one can be found to be of the same person.
                rand::rng().random()
            } else {
                // The whole User-Agent counts, not what is kept of it.
                self.visitors.visitor(target.workspace_id, visit.address, visit.user_agent, visit.at)
            },
            country: self.countries.of(visit.address).filter(|_| !private),
            device_type: Some(agent.device_type.to_owned()),
            browser: agent.browser.as_deref().map(str::to_owned),
            os: agent.os.as_deref().map(str::to_owned),
            referrer: referrer(visit.referrer),
            utm_source,
            utm_medium,
            utm_campaign,
            utm_term,
            utm_content,
            // It may be the same for all clicks of a person.
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

/// Returns a purpose, cut, as text.
fn purpose(sent: &[u8]) -> Option<String> {
    let cut = &sent[..sent.len().min(PURPOSE_BYTES)];
    Some(String::from_utf8_lossy(cut).trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the kept parameters: those of the visited URL, and where it has none, the destination's own.
///
/// A `click_id` of the destination is its owner's, and says nothing of the visit.
fn parameters(visited: Option<&str>, destination: &str) -> Parameters {
    let mut values = Parameters::default();
    take(&mut values, visited.unwrap_or_default());
    let (external, utm) = (values[PARAMETERS.len() - 1].take(), &mut values);
    take(utm, destination::query(destination).unwrap_or_default());
    values[PARAMETERS.len() - 1] = external;
    values
}

/// Takes the values that are still missing from a query; of several, the first that is not empty.
fn take(values: &mut Parameters, query: &str) {
    for (name, value) in destination::parameters(query) {
        if let Some(index) = PARAMETERS.iter().position(|kept| *kept == name)
            && values[index].is_none()
            && !value.is_empty()
        {
            values[index] = Some(cut(destination::decode(value), TEXT_BYTES));
        }
    }
}

/// Returns the host of the page that the visitor comes from, without `www.`.
fn referrer(sent: &[u8]) -> Option<String> {
    if let Some(host) = plain_host(sent) {
        return Some(without_www(host).to_owned());
    }
    let text = String::from_utf8_lossy(&sent[..sent.len().min(REFERRER_BYTES)]);
    let host = Url::parse(text.trim()).ok()?.host_str()?.to_owned();
    Some(cut(without_www(&host).into(), TEXT_BYTES)).filter(|host| !host.is_empty())
}

/// Returns the host of a URL in the form that nearly all browsers send, where parsing it all would not change it.
fn plain_host(url: &[u8]) -> Option<&str> {
    let rest = url.strip_prefix(b"https://").or_else(|| url.strip_prefix(b"http://"))?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let host = &rest[..end];
    let is_plain =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    // The last part of an address is a number; a name in punycode may be none.
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
    use crate::{links::link, spool::record::MAX_LEN, visitor::Rotation};

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

    #[test]
    fn a_request_ahead_of_a_person_is_a_preview_and_keeps_its_purpose() {
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
    fn a_parameter_is_the_first_that_is_not_empty_and_the_visited_one_wins() {
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
    fn who_asks_not_to_be_followed_is_followed_only_where_the_operator_wants_that() {
        for (signal, value, private) in
            [("sec-gpc", &b"1"[..], true), ("dnt", b"1", true), ("dnt", b"0", false)]
        {
            let headers = header_map(&[("user-agent", b"Mozilla/5.0 Firefox/140.0"), (signal, value)]);
            let visit = visit("utm_source=mail&click_id=theirs", &headers);
            let target = target("https://a.example/");
            let click = |respected| clicks(respected).click(&visit, &target, "id".to_owned());
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
        for (sent, host) in [
            ("https://news.example/story?x=1#y", Some("news.example")),
            ("http://news.example", Some("news.example")),
            ("https://news.example:8443/", Some("news.example")),
            ("https://NEWS.example/", Some("news.example")),
            ("https://www.news.example/story", Some("news.example")),
            ("https://WWW.News.example:8443/", Some("news.example")),
            ("https://www.com/", Some("www.com")),
            ("https://www./", Some("www.")),
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
            assert_eq!(referrer(sent.as_bytes()).as_deref(), host, "{sent}");
        }
        let long = format!("https://news.example/{}", "%".repeat(100_000));
        assert_eq!(referrer(long.as_bytes()).as_deref(), Some("news.example"));
    }

    proptest! {
        #[test]
        fn a_host_that_is_read_without_a_parser_is_the_parsers(
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
