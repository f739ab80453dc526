//! The ClickHouse client.

use std::fmt;
use std::str::FromStr;

use clickhouse::Client;
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use crate::{Check, Shutdown, health};

/// The connection to ClickHouse; flatten it into the service's `Config`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "ClickHouse")]
pub struct ClickhouseConfig {
    /// ClickHouse, as http://user:password@host:port/database.
    #[arg(
        id = "clickhouse_url",
        long = "clickhouse-url",
        value_name = "URL",
        env = "CLICKHOUSE_URL",
        hide_env_values = true
    )]
    pub url: ClickhouseUrl,
}

/// The parts of a ClickHouse URL; Debug does not show the password.
#[derive(Clone)]
pub struct ClickhouseUrl {
    /// The server, without credentials and path.
    server: String,
    user: Option<String>,
    password: Option<SecretString>,
    database: Option<String>,
}

/// The error for an unusable URL; it does not contain the text, which may have a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClickhouseUrlFault {
    /// Not a URL, or not http.
    #[error("expected http://user:password@host:port/database")]
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

    fn from_str(text: &str) -> Result<Self, ClickhouseUrlFault> {
        let mut url = Url::parse(text).map_err(|_| ClickhouseUrlFault::NotHttp)?;
        if url.scheme() != "http" || !url.has_host() {
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
            server: url.to_string(),
            user: Some(user).filter(|user| !user.is_empty()),
            password: password.map(SecretString::from),
            database: Some(database).filter(|database| !database.is_empty()),
        })
    }
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
        let database = self.database.as_deref().unwrap_or_default();
        write!(formatter, "ClickhouseUrl({}{database})", self.server)
    }
}

/// Returns a client, without connecting, so that a process starts while ClickHouse is down.
///
/// It has no timeouts; callers set their own.
#[must_use]
pub fn client(config: &ClickhouseConfig) -> Client {
    let ClickhouseUrl { server, user, password, database } = &config.url;
    let mut client = Client::default().with_url(server);
    if let Some(user) = user {
        client = client.with_user(user);
    }
    if let Some(password) = password {
        client = client.with_password(password.expose_secret());
    }
    if let Some(database) = database {
        client = client.with_database(database);
    }
    client
}

/// Probes ClickHouse until a shutdown is requested.
pub async fn watch(client: Client, check: Check, shutdown: Shutdown) {
    let probe = || async { client.query("SELECT 1").execute().await.map(|()| health::OK) };
    health::watch(check, shutdown, probe).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_user_password_and_database() {
        let url: ClickhouseUrl = "http://hop:a%2Fb+c%26d=@ch:8123/clicks".parse().unwrap();
        assert_eq!(url.server, "http://ch:8123/");
        assert_eq!(url.user.as_deref(), Some("hop"));
        assert_eq!(url.password.as_ref().map(|password| password.expose_secret()), Some("a/b+c&d="));
        assert_eq!(url.database.as_deref(), Some("clicks"));
        assert_eq!(format!("{url:?}"), "ClickhouseUrl(http://ch:8123/clicks)");

        let bare: ClickhouseUrl = "http://ch:8123".parse().unwrap();
        assert!(bare.user.is_none() && bare.password.is_none() && bare.database.is_none());
    }

    #[test]
    fn unsupported_urls_are_rejected() {
        for (text, fault) in [
            ("https://ch:8443/x", ClickhouseUrlFault::NotHttp),
            ("tcp://ch:9000", ClickhouseUrlFault::NotHttp),
            ("ch:8123", ClickhouseUrlFault::NotHttp),
            ("http://ch/a/b", ClickhouseUrlFault::Path),
            ("http://ch/a?async_insert=1", ClickhouseUrlFault::Query),
        ] {
            assert_eq!(text.parse::<ClickhouseUrl>().map(drop), Err(fault), "{text}");
        }
    }
}
