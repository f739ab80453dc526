//! TLS between the client and a proxy in front of this service.

use std::net::IpAddr;

use http::header::{FORWARDED, STRICT_TRANSPORT_SECURITY};
use http::{HeaderMap, HeaderValue};

use crate::config::Cidrs;

/// Returns whether a trusted proxy reports that the request came over TLS.
#[must_use]
pub fn came_over_tls(peer: IpAddr, headers: &HeaderMap, trusted: &Cidrs) -> bool {
    if !trusted.contains(peer.to_canonical()) {
        return false;
    }
    let has = |name: &str, is_match: fn(&str) -> bool| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split([',', ';'])).any(|part| is_match(part.trim()))
    };
    has("x-forwarded-proto", |proto| proto.eq_ignore_ascii_case("https"))
        || has(FORWARDED.as_str(), |part| part.replace('"', "").eq_ignore_ascii_case("proto=https"))
}

/// Tells browsers to use only TLS for this host for a year (HSTS, RFC 6797).
pub fn require_tls(headers: &mut HeaderMap) {
    headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trusted_proxy_reports_tls() {
        let trusted: Cidrs = "10.0.0.0/8".parse().unwrap();
        let reported = |peer: &str, name: &'static str, value: &'static str| {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))]);
            came_over_tls(peer.parse().unwrap(), &headers, &trusted)
        };
        for (name, value) in [
            ("x-forwarded-proto", "https"),
            ("x-forwarded-proto", "HTTPS, http"),
            ("forwarded", "for=192.0.2.1; proto=\"https\""),
            ("forwarded", "for=192.0.2.1;Proto=https, for=10.0.0.2"),
        ] {
            assert!(reported("10.0.0.1", name, value), "{value}");
            assert!(reported("::ffff:10.0.0.1", name, value), "{value}");
            assert!(!reported("192.0.2.7", name, value), "{value}");
        }
        for (name, value) in [("x-forwarded-proto", "http"), ("forwarded", "for=https"), ("host", "https")] {
            assert!(!reported("10.0.0.1", name, value), "{value}");
        }
    }
}
