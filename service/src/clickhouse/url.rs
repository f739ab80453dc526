//! The URL of ClickHouse.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

/// The parts of a ClickHouse URL; Debug does not show the password.
#[derive(Clone)]
pub struct ClickhouseUrl {
    /// The servers, without credentials and path; at least one.
    pub(super) servers: Vec<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretString>,
    pub(super) database: Option<String>,
}

impl ClickhouseUrl {
    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &str {
        self.database.as_deref().unwrap_or("default")
    }

    /// Returns whether the servers speak TLS.
    pub(super) fn is_encrypted(&self) -> bool {
        self.servers.iter().any(|server| server.starts_with("https:"))
    }
}

/// Where a statement reads tables whose rows are divided among shards: by default on its own server alone.
#[derive(Debug, Clone, Default)]
pub struct Everywhere(Option<(Arc<ClickhouseUrl>, String)>);

impl Everywhere {
    /// Reads the servers at these addresses, one of each shard and separated by commas, as the user of the URL.
    pub(super) fn at(url: &Arc<ClickhouseUrl>, addresses: String) -> Self {
        Self(Some((Arc::clone(url), addresses)))
    }

    /// Returns the expression of a table. It may have a password.
    #[must_use]
    pub fn of(&self, table: &str) -> String {
        let Some((url, addresses)) = &self.0 else { return table.to_owned() };
        let function = if url.is_encrypted() { "remoteSecure" } else { "remote" };
        let user = url.user.as_deref().unwrap_or("default");
        let password = url.password.as_ref().map_or("", |password| password.expose_secret());
        let [database, user, password] = [url.database(), user, password].map(quoted);
        format!("{function}('{addresses}', {database}, '{table}', {user}, {password})")
    }
}

/// The error for an unusable URL; it does not contain the text, which may have a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClickhouseUrlFault {
    /// Not a URL, or neither http nor https.
    #[error("expected http://user:password@host:port/database or https://…")]
    NotHttp,
    /// The path has more than one segment.
    #[error("the path must be one database name")]
    Path,
    /// The URL has query parameters or a fragment.
    #[error("query parameters are not supported")]
    Query,
}

impl FromStr for ClickhouseUrl {
    type Err = ClickhouseUrlFault;

    /// Parses a URL, which may name several hosts, separated by commas, as one of Postgres may.
    fn from_str(text: &str) -> Result<Self, ClickhouseUrlFault> {
        let begin = text.find("://").map_or(0, |scheme| scheme + 3);
        let end = text[begin..].find(['/', '?', '#']).map_or(text.len(), |length| begin + length);
        let (credentials, hosts) = match text[begin..end].rsplit_once('@') {
            Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
            None => (String::new(), &text[begin..end]),
        };
        let one = |host: &str| match host {
            // The parser would take the path for the host.
            "" => Err(ClickhouseUrlFault::NotHttp),
            _ => Self::of_one_host(&format!("{}{credentials}{host}{}", &text[..begin], &text[end..])),
        };
        let mut hosts = hosts.split(',').map(one);
        // A split has at least one part.
        let mut first = hosts.next().unwrap_or(Err(ClickhouseUrlFault::NotHttp))?;
        for other in hosts {
            first.servers.extend(other?.servers);
        }
        Ok(first)
    }
}

impl ClickhouseUrl {
    fn of_one_host(text: &str) -> Result<Self, ClickhouseUrlFault> {
        let mut url = Url::parse(text).map_err(|_| ClickhouseUrlFault::NotHttp)?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(ClickhouseUrlFault::NotHttp);
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(ClickhouseUrlFault::Query);
        }
        let database = decode(url.path().trim_matches('/'));
        if database.contains('/') {
            return Err(ClickhouseUrlFault::Path);
        }
        let user = decode(url.username());
        let password = url.password().map(decode);
        url.set_path("");
        // Both succeed on a URL that has a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        Ok(Self {
            servers: vec![url.to_string()],
            user: Some(user).filter(|user| !user.is_empty()),
            password: password.map(SecretString::from),
            database: Some(database).filter(|database| !database.is_empty()),
        })
    }
}

/// Returns a text as a literal of ClickHouse.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'"))
}

/// Decodes percent-encoding, as in passwords.
fn decode(text: &str) -> String {
    // Escaped, because a form decoder gives + & = a special meaning.
    let text = text.replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
    url::form_urlencoded::parse(text.as_bytes())
        .next()
        .map(|(decoded, _)| decoded.into_owned())
        .unwrap_or_default()
}

impl fmt::Debug for ClickhouseUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ClickhouseUrl({}{})", self.servers.join(","), self.database())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_within_its_quotes() {
        assert_eq!(quoted(r"a'b\'c\"), r"'a\'b\\\'c\\'");
    }

    #[test]
    fn tables_of_other_shards_are_read_as_the_same_user() {
        let url = |text: &str| Arc::new(text.parse::<ClickhouseUrl>().unwrap());
        let of = |text| Everywhere::at(&url(text), "a:1,b:2".to_owned());
        let plain = of("http://hop:it%27s@ch:8123/links");
        assert_eq!(plain.of("clicks"), r"remote('a:1,b:2', 'links', 'clicks', 'hop', 'it\'s')");
        assert!(!format!("{plain:?}").contains("it's"));
        let encrypted = of("https://ch:8443");
        assert_eq!(encrypted.of("counts"), "remoteSecure('a:1,b:2', 'default', 'counts', 'default', '')");
        assert_eq!(Everywhere::default().of("clicks"), "clicks");
    }

    #[test]
    fn a_url_has_user_password_and_database() {
        let url: ClickhouseUrl = "http://hop:a%2Fb+c%26d=@ch:8123/clicks".parse().unwrap();
        assert_eq!(url.servers, ["http://ch:8123/"]);
        assert_eq!(url.user.as_deref(), Some("hop"));
        assert_eq!(url.password.as_ref().map(|password| password.expose_secret()), Some("a/b+c&d="));
        assert_eq!(url.database.as_deref(), Some("clicks"));
        assert_eq!(format!("{url:?}"), "ClickhouseUrl(http://ch:8123/clicks)");

        let bare: ClickhouseUrl = "http://ch:8123".parse().unwrap();
        assert!(bare.user.is_none() && bare.password.is_none() && bare.database.is_none());
    }

    #[test]
    fn a_url_may_name_several_hosts() {
        let url: ClickhouseUrl = "https://hop:a%2Cb@ch1:8443,[::1]:8443,ch3/clicks".parse().unwrap();
        assert_eq!(url.servers, ["https://ch1:8443/", "https://[::1]:8443/", "https://ch3/"]);
        assert_eq!(url.password.as_ref().map(|password| password.expose_secret()), Some("a,b"));
        assert_eq!(url.database(), "clicks");
    }

    #[test]
    fn unsupported_urls_are_rejected() {
        for (text, fault) in [
            ("tcp://ch:9000", ClickhouseUrlFault::NotHttp),
            ("ch:8123", ClickhouseUrlFault::NotHttp),
            ("http://ch:8123,/clicks", ClickhouseUrlFault::NotHttp),
            ("http://ch/a/b", ClickhouseUrlFault::Path),
            ("http://ch/a?async_insert=1", ClickhouseUrlFault::Query),
        ] {
            assert_eq!(text.parse::<ClickhouseUrl>().map(drop), Err(fault), "{text}");
        }
    }
}
