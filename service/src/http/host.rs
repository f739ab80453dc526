//! The header `Host`.

use std::net::Ipv6Addr;

use http::header::HOST;
use http::{Request, Version};

use super::ApiError;

/// Checks that a request has one valid `Host`; before HTTP/1.1 it may have none (RFC 9112, 3.2).
///
/// Otherwise a proxy and this server could take a request for one to different hosts.
///
/// # Errors
/// 400 for a missing, repeated or malformed one.
pub(super) fn check_host<B>(request: &Request<B>) -> Result<(), ApiError> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let is_valid = match (hosts.next(), hosts.next()) {
        (Some(host), None) => is_host(host.as_bytes()),
        (None, _) => request.version() < Version::HTTP_11,
        (Some(_), Some(_)) => false,
    };
    match is_valid {
        true => Ok(()),
        false => Err(ApiError::bad_request("A request must have one valid Host header.")),
    }
}

/// Returns whether a value is a host, and perhaps a port.
///
/// RFC 3986 also allows marks such as a comma in a host. No name has one, and a comma joins two hosts.
fn is_host(value: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return false };
    let (is_valid, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => (
            address.parse::<Ipv6Addr>().is_ok(),
            rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")),
        ),
        None => {
            let (name, port) = text.split_once(':').unwrap_or((text, ""));
            let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte);
            (!name.is_empty() && name.bytes().all(is_of_name), Some(port))
        }
    };
    let is_port = |port: &str| {
        port.is_empty() || (port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok())
    };
    is_valid && port.is_some_and(is_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
        for good in [
            "go.example",
            "GO.example.:8080",
            "x",
            "localhost:",
            "a_b",
            "xn--tst-qla.example",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:80",
            "[::ffff:127.0.0.1]:",
        ] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            " ",
            ":80",
            "a b",
            "a,b",
            "a/b",
            "a?b",
            "a@b",
            "a:b@a",
            "@a",
            "a@a:80",
            "a:80:80",
            "a:x",
            "a:+80",
            "a:65536",
            "[::1",
            "::1",
            "[]",
            "[x]",
            "a[b]",
            "[::1]a",
            "[::1]a:80",
            "[::1]@[::1]:80",
            "[::1%25eth0]",
            "http://a",
            "a\u{e4}",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
        assert!(!is_host(b"a\xff"));
    }
}
