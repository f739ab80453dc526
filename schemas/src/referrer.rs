//! Hosts of referring pages.

/// Returns a host without a leading `www.`, so that a site counts as one referrer.
///
/// The rest must contain a dot: `www.com` is unchanged.
pub fn without_www(host: &str) -> &str {
    match host.strip_prefix("www.") {
        Some(rest) if has_inner_dot(rest) => without_www(rest),
        _ => host,
    }
}

fn has_inner_dot(host: &str) -> bool {
    host.split_once('.')
        .is_some_and(|(name, rest)| !name.is_empty() && !matches!(rest.as_bytes(), [] | [b'.', ..]))
}

/// The same rule for column `referrer`, as a ClickHouse expression.
pub const WITHOUT_WWW: &str = r"replaceRegexpOne(referrer, '^(www\\.)+([^.]+\\.[^.])', '\\2')";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn www_is_removed_except_from_a_two_label_host() {
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
