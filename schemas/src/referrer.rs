//! Hosts of the pages that visitors come from.

/// Returns a host without a leading `www.`, so that a site is one referrer. What is left has a dot within: `www.com` is
/// a site's whole name.
pub fn without_www(host: &str) -> &str {
    match host.strip_prefix("www.") {
        Some(rest) if is_site(rest) => without_www(rest),
        _ => host,
    }
}

fn is_site(host: &str) -> bool {
    host.split_once('.')
        .is_some_and(|(name, rest)| !name.is_empty() && !matches!(rest.as_bytes(), [] | [b'.', ..]))
}

/// The same for column `referrer`, as an expression of ClickHouse.
pub const WITHOUT_WWW: &str = r"replaceRegexpOne(referrer, '^(www\\.)+([^.]+\\.[^.])', '\\2')";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_one_referrer_with_and_without_www() {
        for (host, expected) in [
            ("www.news.example", "news.example"),
            ("news.example", "news.example"),
            ("www.www.news.example", "news.example"),
            ("www.news.co.uk", "news.co.uk"),
            ("news.www.example", "news.www.example"),
            ("wwwx.example", "wwwx.example"),
            ("www2.example.com", "www2.example.com"),
            ("www.com", "www.com"),
            ("www.www.com", "www.com"),
            ("www.com.", "www.com."),
            ("www.", "www."),
            ("www", "www"),
            ("www..example", "www..example"),
            ("", ""),
        ] {
            assert_eq!(without_www(host), expected, "{host}");
        }
    }
}
