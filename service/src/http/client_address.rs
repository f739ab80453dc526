//! The address of the client behind proxies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};

use crate::LogLimit;
use crate::config::Cidrs;

/// Maximum number of hops, because a client can send a header of many kilobytes.
const MAX_HOPS: usize = 64;

/// Maximum length of a node: a full IPv6 address with brackets, an obfuscated port and quotes.
const MAX_NODE_BYTES: usize = 128;

static LOG_LIMIT: LazyLock<LogLimit> = LazyLock::new(LogLimit::default);

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns the address of the client: the nearest one that is not a trusted proxy.
///
/// Each proxy appends the address of its peer, so the list is read from the right as long as addresses are trusted;
/// the rest may be forged. A proxy commonly writes only one of `Forwarded` (RFC 7239) and `X-Forwarded-For` and
/// forwards the other unchanged. When both are present and differ, both are ignored and the peer is returned.
#[must_use]
pub fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &Cidrs) -> IpAddr {
    let peer = peer.to_canonical();
    if !trusted.contains(peer) {
        let is_forwarded = headers.contains_key(FORWARDED) || headers.contains_key(X_FORWARDED_FOR);
        if is_forwarded && is_internal(peer) && LOG_LIMIT.is_due() {
            tracing::warn!(
                %peer,
                "ignored the forwarded address of a request from {peer}: if that is your proxy, add it to \
                 HOPLINE_TRUSTED_PROXIES; otherwise all its clients count as one"
            );
        }
        return peer;
    }
    let forwarded = headers
        .contains_key(FORWARDED)
        .then(|| nearest_untrusted(peer, elements(headers, &FORWARDED).map(forwarded_for), trusted));
    let x_forwarded = headers
        .contains_key(X_FORWARDED_FOR)
        .then(|| nearest_untrusted(peer, elements(headers, &X_FORWARDED_FOR).map(node_address), trusted));
    match (forwarded, x_forwarded) {
        (Some(one), Some(other)) if one != other => peer,
        (Some(address), _) | (None, Some(address)) => address,
        (None, None) => peer,
    }
}

/// Returns the number that a client is limited by: its /64 network for IPv6.
#[must_use]
pub fn client_network(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        // The owner of one address of a /64 owns all of them.
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }
}

/// Returns whether an address is of an internal network, where the peer is more likely a proxy than a client.
///
/// Addresses of other networks may be those of clients, which are never logged.
pub(super) fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_private() || address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}

/// Follows the hops from the peer; an unreadable address ends the search at the previous one.
fn nearest_untrusted(peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>, trusted: &Cidrs) -> IpAddr {
    let mut nearest = peer;
    for hop in hops.take(MAX_HOPS) {
        let Some(address) = hop else { break };
        nearest = address;
        if !trusted.contains(address) {
            break;
        }
    }
    nearest
}

/// Returns the elements of a list header from right to left, across all its lines.
///
/// Bytes, not text, because invalid UTF-8 must not make the request fail. A comma inside quotes also ends an element:
/// no address contains one, and otherwise a client could open a quote that hides what the proxies appended.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    headers
        .get_all(name)
        .iter()
        .rev()
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        // Empty elements are ignored (RFC 9110, 5.6.1).
        .filter(|element| !element.is_empty())
}

/// Reads the `for` parameter of one element of `Forwarded`; `None` when it is missing or repeated.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut nodes = element.split(|byte| *byte == b';').filter_map(|parameter| {
        let equals = parameter.iter().position(|byte| *byte == b'=')?;
        let (name, value) = parameter.split_at(equals);
        name.trim_ascii().eq_ignore_ascii_case(b"for").then(|| value[1..].trim_ascii())
    });
    let node = nodes.next()?;
    if nodes.next().is_some() { None } else { node_address(node) }
}

/// Reads an address, with or without quotes, brackets and a port (RFC 7239, 6).
///
/// `unknown` and obfuscated names such as `_hidden` are not addresses.
fn node_address(node: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(node).ok().filter(|text| text.len() <= MAX_NODE_BYTES)?;
    let text = text.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or(text);
    let address = if let Some(inner) = text.strip_prefix('[') {
        let (address, rest) = inner.split_once(']')?;
        let is_end = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        IpAddr::V6(address.parse::<Ipv6Addr>().ok().filter(|_| is_end)?)
    } else {
        match text.split_once(':') {
            // More than one colon is an IPv6 address, which `X-Forwarded-For` has without brackets.
            Some((address, port)) if !port.contains(':') => {
                IpAddr::V4(address.parse::<Ipv4Addr>().ok().filter(|_| is_port(port))?)
            }
            _ => text.parse().ok()?,
        }
    };
    Some(address.to_canonical())
}

/// Returns whether a text is a port or an obfuscated port.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn client(peer: &str, lines: &[(&'static str, &[u8])]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        let trusted = "10.0.0.0/8,::1/128".parse().unwrap();
        client_address(peer.parse().unwrap(), &headers, &trusted).to_string()
    }

    #[test]
    fn headers_from_an_untrusted_peer_are_ignored() {
        assert_eq!(client("192.0.2.1", &[("x-forwarded-for", b"198.51.100.1")]), "192.0.2.1");
        assert_eq!(client("192.0.2.1", &[("forwarded", b"for=198.51.100.1")]), "192.0.2.1");
        assert_eq!(client("::ffff:192.0.2.1", &[]), "192.0.2.1");
    }

    #[test]
    fn the_nearest_untrusted_address_is_the_client() {
        for (value, expected) in [
            (&b"198.51.100.1"[..], "198.51.100.1"),
            (b"203.0.113.9, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
            (b"10.0.0.9, 10.0.0.2", "10.0.0.9"),
            (b"198.51.100.1:4711", "198.51.100.1"),
            (b"2001:db8::1", "2001:db8::1"),
            (b"[2001:db8::1]:443", "2001:db8::1"),
            (b"::ffff:198.51.100.1", "198.51.100.1"),
            (b" ,198.51.100.1, ,", "198.51.100.1"),
        ] {
            let shown = String::from_utf8_lossy(value).into_owned();
            assert_eq!(client("10.0.0.1", &[("x-forwarded-for", value)]), expected, "{shown}");
        }
        assert_eq!(client("::1", &[("forwarded", b"For=\"[2001:db8::1]:99\";proto=https")]), "2001:db8::1");
        assert_eq!(
            client("::1", &[("forwarded", b"proto=http;for=198.51.100.1, for=10.0.0.3")]),
            "198.51.100.1"
        );
        assert_eq!(
            client("10.0.0.1", &[("x-forwarded-for", b"203.0.113.9"), ("x-forwarded-for", b"198.51.100.1")]),
            "198.51.100.1"
        );
    }

    #[test]
    fn an_unreadable_hop_ends_the_search() {
        for unreadable in [
            &b"unknown"[..],
            b"_hidden",
            b"\xff\xfe",
            b"198.51.100.300",
            b"\"198.51.100.1",
            b"198.51.100.1:",
            b"198.51.100.1:99999",
            b"198.51.100.1:+1",
            b"198.51.100.1:_",
            b"[2001:db8::1",
            b"[2001:db8::1]x",
            b"[198.51.100.1]",
            b"fe80::1%eth0",
            b"example.com",
        ] {
            let value = [b"203.0.113.9, ", unreadable, b", 10.0.0.2"].concat();
            assert_eq!(client("10.0.0.1", &[("x-forwarded-for", &value)]), "10.0.0.2");
        }
        for forwarded in [&b"proto=https"[..], b"for=198.51.100.1;for=203.0.113.9", b"for", b"for=", b";;=;"]
        {
            let shown = String::from_utf8_lossy(forwarded).into_owned();
            assert_eq!(client("10.0.0.1", &[("forwarded", forwarded)]), "10.0.0.1", "{shown}");
        }
    }

    #[test]
    fn ports_may_be_obfuscated() {
        for (value, expected) in [
            (&b"for=\"198.51.100.1:_x1.-_\""[..], "198.51.100.1"),
            (b"for=198.51.100.1:80", "198.51.100.1"),
            (b"for=\"[2001:db8::1]:_gate\"", "2001:db8::1"),
            (b"for=\"[2001:db8::1]\"", "2001:db8::1"),
            (b"By=\"_a\"; FOR = \"198.51.100.1\" ;host=a.example", "198.51.100.1"),
        ] {
            let shown = String::from_utf8_lossy(value).into_owned();
            assert_eq!(client("10.0.0.1", &[("forwarded", value)]), expected, "{shown}");
        }
    }

    #[test]
    fn an_open_quote_does_not_hide_appended_addresses() {
        let value = b"for=203.0.113.9;by=\"open, for=198.51.100.1, for=\"10.0.0.2\"";
        assert_eq!(client("10.0.0.1", &[("forwarded", value)]), "198.51.100.1");
    }

    #[test]
    fn only_the_last_hops_of_a_long_header_are_read() {
        let hops = b"10.0.0.9,".repeat(30_000 / 9);
        let value = [b"198.51.100.1, ", &hops[..]].concat();
        assert_eq!(client("10.0.0.1", &[("x-forwarded-for", &value)]), "10.0.0.9");
        // A single element of that length is not an address.
        assert_eq!(client("10.0.0.1", &[("x-forwarded-for", &b"1".repeat(30_000))]), "10.0.0.1");
        let many: Vec<(&'static str, &[u8])> = vec![("x-forwarded-for", b"10.0.0.9"); 5_000];
        assert_eq!(client("10.0.0.1", &many), "10.0.0.9");
    }

    #[test]
    fn two_headers_that_differ_are_ignored() {
        let honest: (&str, &[u8]) = ("x-forwarded-for", b"198.51.100.1");
        assert_eq!(client("10.0.0.1", &[honest, ("forwarded", b"for=203.0.113.9")]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &[honest, ("forwarded", b"for=198.51.100.1")]), "198.51.100.1");
    }

    proptest! {
        #[test]
        fn forged_hops_never_change_the_client(
            forged in proptest::collection::vec(
                any::<u8>().prop_filter("not a header byte", |byte| *byte >= 32 && *byte != 127),
                0..80,
            ),
            own_line in any::<bool>(),
        ) {
            // The proxy 10.0.0.2 appended the client, and the peer 10.0.0.1 appended that proxy.
            let appended = b"198.51.100.1, 10.0.0.2";
            let joined = [&forged[..], b", ", appended].concat();
            let lines: Vec<(&'static str, &[u8])> = if own_line {
                vec![("x-forwarded-for", &forged), ("x-forwarded-for", appended)]
            } else {
                vec![("x-forwarded-for", &joined)]
            };
            prop_assert_eq!(client("10.0.0.1", &lines), "198.51.100.1");
        }
    }
}
