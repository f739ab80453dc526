//! Destinations: where a link may lead.

use url::Url;

/// Longest destination, in bytes.
const MAX_LEN: usize = 2048;

/// Says what is wrong with a destination that a caller gave, or `Ok`.
///
/// The text itself is kept, not its parsed form: parsing would change percent-encodings that the caller's
/// server may depend on.
pub(super) fn check(destination: &str, public_url: &Url) -> Result<(), &'static str> {
    if destination.len() > MAX_LEN {
        return Err("must have at most 2048 bytes");
    }
    if destination.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("must have no spaces and no control characters; percent-encode them");
    }
    let url =
        Url::parse(destination).map_err(|_| "must be an absolute URL, such as https://example.com/page")?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with http:// or https://");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must have no user name and no password");
    }
    if is_own_host(&url, public_url) {
        return Err("must not be on this service's own host: the link could lead to itself");
    }
    Ok(())
}

fn is_own_host(url: &Url, public_url: &Url) -> bool {
    let host = |url: &Url| url.host_str().map(|host| host.trim_end_matches('.').to_ascii_lowercase());
    host(url) == host(public_url) && url.port_or_known_default() == public_url.port_or_known_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public() -> Url {
        Url::parse("https://go.example").unwrap()
    }

    #[test]
    fn an_absolute_http_url_is_a_destination() {
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
    fn what_is_no_safe_destination_is_refused() {
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
            &long,
        ] {
            assert!(check(bad, &public()).is_err(), "{bad}");
        }
    }
}
