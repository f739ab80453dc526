//! Whom a request comes from when proxies stand in between.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, header::FORWARDED};

use crate::config::Cidrs;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns the address of the client: the nearest one that is not a trusted proxy.
///
/// Each proxy appends the address it saw, so the list is read from the right, as far as the writers are trusted;
/// what stands left of that may be forged. A proxy commonly writes only one of `Forwarded` (RFC 7239) and
/// `X-Forwarded-For` and passes the other on as the client sent it. When both are present and differ, neither is
/// believed, and the client is the nearest address that is certain: the peer.
#[must_use]
pub fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &Cidrs) -> IpAddr {
    let peer = peer.to_canonical();
    if !trusted.contains(peer) {
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

/// Walks from the peer outwards; an address that cannot be read ends the walk at the last one known.
fn nearest_untrusted(peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>, trusted: &Cidrs) -> IpAddr {
    let mut nearest = peer;
    for hop in hops {
        let Some(address) = hop else { break };
        nearest = address;
        if !trusted.contains(address) {
            break;
        }
    }
    nearest
}

/// Returns the elements of a list header from right to left, over all its lines.
///
/// Bytes, not text: a client may send anything, and that must not make the request fail.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines: Vec<&[u8]> = headers.get_all(name).iter().map(|line| line.as_bytes()).collect();
    lines
        .into_iter()
        .rev()
        .flat_map(|line| line.rsplit(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        // Empty elements carry no hop (RFC 9110, 5.6.1).
        .filter(|element| !element.is_empty())
}

/// Reads the `for` parameter of one element of `Forwarded`.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    element.split(|byte| *byte == b';').find_map(|parameter| {
        let equals = parameter.iter().position(|byte| *byte == b'=')?;
        let (name, value) = parameter.split_at(equals);
        name.trim_ascii().eq_ignore_ascii_case(b"for").then(|| node_address(value[1..].trim_ascii()))
    })?
}

/// Reads an address, with or without quotes, brackets and a port.
fn node_address(node: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(node).ok()?;
    let text = text.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or(text);
    let bare = text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(text);
    bare.parse::<IpAddr>()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
        .map(|address| address.to_canonical())
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
    fn an_untrusted_peer_is_the_client_whatever_it_claims() {
        assert_eq!(client("192.0.2.1", &[("x-forwarded-for", b"198.51.100.1")]), "192.0.2.1");
        assert_eq!(client("192.0.2.1", &[("forwarded", b"for=198.51.100.1")]), "192.0.2.1");
        assert_eq!(client("::ffff:192.0.2.1", &[]), "192.0.2.1");
    }

    #[test]
    fn the_nearest_address_that_is_no_proxy_is_the_client() {
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
    fn an_unreadable_hop_ends_the_walk() {
        for unreadable in [&b"unknown"[..], b"_hidden", b"\xff\xfe", b"198.51.100.300", b"\"198.51.100.1"] {
            let value = [b"203.0.113.9, ", unreadable, b", 10.0.0.2"].concat();
            assert_eq!(client("10.0.0.1", &[("x-forwarded-for", &value)]), "10.0.0.2");
        }
        assert_eq!(client("10.0.0.1", &[("forwarded", b"proto=https")]), "10.0.0.1");
    }

    #[test]
    fn two_headers_that_differ_are_not_believed() {
        let honest: (&str, &[u8]) = ("x-forwarded-for", b"198.51.100.1");
        assert_eq!(client("10.0.0.1", &[honest, ("forwarded", b"for=203.0.113.9")]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &[honest, ("forwarded", b"for=198.51.100.1")]), "198.51.100.1");
    }

    proptest! {
        #[test]
        fn nothing_left_of_the_client_is_ever_believed(
            forged in proptest::collection::vec(any::<u8>().prop_filter("not a header byte", |byte| *byte >= 32 && *byte != 127), 0..80),
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
