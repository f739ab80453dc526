//! Rules of destinations.

use std::borrow::Cow;
use std::collections::HashSet;

use parking_lot::RwLock;
use service::destination::{host_name, site};
use url::Url;

use crate::web::faults::parse_url;

/// Adds `https://` to a host name without a scheme, as the dashboard's form does.
pub(crate) fn completed(destination: &str) -> Cow<'_, str> {
    let host = destination.split(['/', '?', '#']).next().unwrap_or_default();
    let (name, port) = host.split_once(':').unwrap_or((host, "0"));
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if name.contains('.') && name.split('.').all(is_label) && is_port {
        Cow::Owned(format!("https://{destination}"))
    } else {
        Cow::Borrowed(destination)
    }
}

/// What no destination may be on: this service's own host, and hosts that an operator blocked.
#[derive(Debug)]
pub(crate) struct Destinations {
    own: Url,
    blocked: RwLock<HashSet<String>>,
}

impl Destinations {
    /// Allows all hosts but the one of `own`.
    pub(crate) fn new(own: Url) -> Self {
        Self { own, blocked: RwLock::default() }
    }

    /// Replaces the blocked hosts.
    pub(crate) fn set_blocked(&self, hosts: impl IntoIterator<Item = String>) {
        // A former release stored an IPv4 address that was given as an IPv6 address as the latter.
        *self.blocked.write() = hosts.into_iter().map(|host| normal_host(&host).unwrap_or(host)).collect();
    }

    /// Returns the blocked host that a destination is on, or on a subdomain of.
    pub(crate) fn blocked_host(&self, destination: &str) -> Option<String> {
        let blocked = self.blocked.read();
        if blocked.is_empty() {
            return None;
        }
        let host = host_name(&Url::parse(destination).ok()?)?;
        let mut rest = host.as_str();
        loop {
            if blocked.contains(rest) {
                return Some(rest.to_owned());
            }
            (_, rest) = rest.split_once('.')?;
        }
    }
}

/// Returns a host in the spelling in which destinations are compared; `None` for a text that is not just a host.
pub(crate) fn normal_host(text: &str) -> Option<String> {
    let url = Url::parse(&format!("https://{text}/")).ok()?;
    let is_host_only = url.path() == "/"
        && url.port().is_none()
        && url.username().is_empty()
        && url.query().is_none()
        && url.fragment().is_none()
        && !text.contains(['/', '\\', '@', '?', '#']);
    host_name(&url).filter(|_| is_host_only)
}

/// Checks a destination.
///
/// The text is stored, not its parsed form: parsing would change percent-encodings that the destination may depend on.
pub(crate) fn check(destination: &str, destinations: &Destinations) -> Result<(), String> {
    let url = parse_url(destination)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must start with http:// or https://".to_owned());
    }
    if site(&url) == site(&destinations.own) {
        return Err(
            "must not be on this service's own host, because the link could lead to itself".to_owned()
        );
    }
    if destinations.blocked_host(destination).is_some() {
        return Err("must not be on a host that the operator of this service has blocked".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public() -> Destinations {
        Destinations::new(Url::parse("https://go.example").unwrap())
    }

    #[test]
    fn a_blocked_host_covers_its_subdomains_only() {
        let destinations = public();
        destinations.set_blocked(["evil.example", "192.0.2.1", "[::ffff:c000:202]"].map(str::to_owned));
        for bad in [
            "https://evil.example/",
            "https://EVIL.example./x",
            "http://a.b.evil.example:8080",
            "https://ev%69l.example/",
            "https://ｅvil.example/",
            "http://192.0.2.1/",
            "http://3221225985/",
            "http://[::ffff:192.0.2.1]/",
            "http://[::ffff:c000:201]:8080/x",
            "http://[::192.0.2.1]/",
            "http://[64:ff9b::192.0.2.1]/",
            "http://[2002:c000:201::1]/",
            "http://192.0.2.2/",
        ] {
            assert!(check(bad, &destinations).is_err(), "{bad}");
        }
        for good in [
            "https://notevil.example/",
            "https://example/",
            "https://evil.example.org/",
            "http://192.0.2.11/",
            "http://[::ffff:192.0.2.11]/",
            "http://[2001:db8::c000:201]/",
        ] {
            assert_eq!(check(good, &destinations), Ok(()), "{good}");
        }
    }

    #[test]
    fn an_absolute_http_url_is_a_valid_destination() {
        for good in [
            "https://example.com",
            "http://example.com:8080/a?b=c%20d&e=%C3%A9#f",
            "https://täst.example/",
            "https://[2001:db8::1]/",
            "https://www.go.example/",
            "https://go.example:8443/",
        ] {
            assert_eq!(check(good, &public()), Ok(()), "{good}");
        }
    }

    #[test]
    fn only_a_host_without_a_scheme_gets_https() {
        for host in
            ["example.com", "EXAMPLE.com/x?a=b#c", "a-b.example:8080/", "1.2.3.4?x", "example.com:80#x"]
        {
            assert_eq!(completed(host), format!("https://{host}"));
        }
        for other in [
            "https://example.com",
            "localhost",
            "localhost:8080",
            "mailto:a@example.com",
            "javascript:alert(1)",
            "example.com:x",
            "example.com:",
            "example..com",
            "exam ple.com",
            "user@example.com",
            ".example.com",
            "/page",
            "",
        ] {
            assert_eq!(completed(other), other);
        }
    }

    #[test]
    fn an_unsafe_destination_is_rejected() {
        let long = format!("https://example.com/{}", "x".repeat(2048));
        for bad in [
            "",
            "example.com",
            "/page",
            "ftp://example.com",
            "javascript:alert(1)",
            "data:text/html,x",
            "https://user@example.com",
            "https://user:secret@example.com",
            "https://exa mple.com",
            "https://example.com/a b",
            "https://example.com/\r\nSet-Cookie:%20a",
            "https://",
            "https://go.example/x",
            "https://GO.example./x",
            "https://go.example:443/x",
            "http://go.example/x",
            "https://go.example:80/x",
            "HTTPS://go.example/x",
            "https:\\\\go.example/x",
            "https:/\\go.example/x",
            "https:///go.example/x",
            "https://go%2Eexample/x",
            "https://ｇｏ.example/x",
            "https:x",
            "https:/x",
            "https:\\x",
            "https:///example.com/",
            "https://@example.com/",
            "https://example.com/a\\b",
            "https://go.exam\u{ad}ple/x",
            "https://example.com/\u{200b}",
            &long,
        ] {
            assert!(check(bad, &public()).is_err(), "{bad}");
        }
    }
}
