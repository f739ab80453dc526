//! Rules of destinations.

use std::borrow::Cow;
use std::collections::HashSet;

use parking_lot::RwLock;
use service::destination::site;
use url::Url;

/// Longest destination, in bytes.
const MAX_LEN: usize = 2048;

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
        *self.blocked.write() = hosts.into_iter().collect();
    }

    /// Returns the blocked host that a destination is on, or on a subdomain of.
    pub(crate) fn blocked_host(&self, destination: &str) -> Option<String> {
        let blocked = self.blocked.read();
        if blocked.is_empty() {
            return None;
        }
        let host = host(&Url::parse(destination).ok()?)?;
        let mut rest = host.as_str();
        loop {
            if blocked.contains(rest) {
                return Some(rest.to_owned());
            }
            (_, rest) = rest.split_once('.')?;
        }
    }
}

/// Returns a URL's host in lower case, without a trailing dot.
pub(crate) fn host(url: &Url) -> Option<String> {
    url.host_str().map(|host| host.trim_end_matches('.').to_ascii_lowercase())
}

/// Checks a destination.
///
/// The text is stored, not its parsed form: parsing would change percent-encodings that the destination may depend on.
pub(crate) fn check(destination: &str, destinations: &Destinations) -> Result<(), &'static str> {
    if destination.len() > MAX_LEN {
        return Err("must have at most 2,048 bytes");
    }
    if destination.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("must not contain spaces or control characters: percent-encode them");
    }
    let url =
        Url::parse(destination).map_err(|_| "must be an absolute URL, such as https://example.com/page")?;
    // Also rejects `https:page` and `https:/page`, which browsers resolve on the host that redirects to them.
    let start = destination.to_ascii_lowercase();
    if !(start.starts_with("http://") || start.starts_with("https://")) {
        return Err("must start with http:// or https://");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not contain a user name or a password");
    }
    if site(&url) == site(&destinations.own) {
        return Err("must not be on this service's own host, because the link could lead to itself");
    }
    if destinations.blocked_host(destination).is_some() {
        return Err("must not be on a host that the operator of this service has blocked");
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
        destinations.set_blocked(["evil.example".to_owned(), "192.0.2.1".to_owned()]);
        for bad in [
            "https://evil.example/",
            "https://EVIL.example./x",
            "http://a.b.evil.example:8080",
            "https://ev%69l.example/",
            "https://ｅvil.example/",
            "http://192.0.2.1/",
            "http://3221225985/",
        ] {
            assert!(check(bad, &destinations).is_err(), "{bad}");
        }
        for good in [
            "https://notevil.example/",
            "https://example/",
            "https://evil.example.org/",
            "http://192.0.2.11/",
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
            &long,
        ] {
            assert!(check(bad, &public()).is_err(), "{bad}");
        }
    }
}
