//! Hosts of referring pages.

use std::borrow::Cow;

/// Returns a host in the spelling in which a site counts as one referrer: in lower case, without a dot at its end and
/// without a leading `www.`.
///
/// What follows `www.` must contain a dot: `www.com` is unchanged.
pub fn normalize(host: &str) -> Cow<'_, str> {
    let host = host.trim_end_matches('.');
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let lower = host.to_ascii_lowercase();
        return Cow::Owned(without_www(&lower).to_owned());
    }
    Cow::Borrowed(without_www(host))
}

fn without_www(host: &str) -> &str {
    match host.strip_prefix("www.") {
        Some(rest) if has_inner_dot(rest) => without_www(rest),
        _ => host,
    }
}

fn has_inner_dot(host: &str) -> bool {
    host.split_once('.')
        .is_some_and(|(name, rest)| !name.is_empty() && !matches!(rest.as_bytes(), [] | [b'.', ..]))
}

/// [`normalize`] for column `referrer`, as a ClickHouse expression.
pub const NORMALIZED: &str =
    r"replaceRegexpOne(trim(TRAILING '.' FROM lower(referrer)), '^(www\\.)+([^.]+\\.[^.])', '\\2')";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_has_one_spelling() {
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
            ("www.com.", "www.com"),
            ("www.", "www"),
            ("www", "www"),
            ("www..example", "www..example"),
            ("news.example.", "news.example"),
            ("WWW.News.Example..", "news.example"),
            ("com.Example.Mail", "com.example.mail"),
            ("..", ""),
            ("", ""),
        ] {
            assert_eq!(normalize(host), expected, "{host}");
        }
    }
}
