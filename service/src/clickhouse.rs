//! The ClickHouse client.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clickhouse::Client;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use crate::{Check, Shutdown, health};

/// How long a connection is idle before TCP asks whether the server is there, as in the library's own client.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// How long an idle connection is kept: less than ClickHouse's 3 s, as in the library's own client.
const POOL_IDLE: Duration = Duration::from_secs(2);

/// The connection to ClickHouse; flatten it into the service's `Config`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "ClickHouse")]
pub struct ClickhouseConfig {
    /// ClickHouse, as https://user:password@host:port/database.
    #[arg(
        id = "clickhouse_url",
        long = "clickhouse-url",
        value_name = "URL",
        env = "CLICKHOUSE_URL",
        hide_env_values = true
    )]
    pub url: ClickhouseUrl,

    /// Certificates in PEM, one of which signed that of ClickHouse; without it, the machine's own list applies.
    #[arg(
        id = "clickhouse_ca",
        long = "clickhouse-ca-file",
        value_name = "PATH",
        env = "HOPLINE_CLICKHOUSE_CA_FILE",
        value_parser = read_certificates
    )]
    pub ca: Option<Arc<RootCertStore>>,
}

/// Reads the certificates of a file.
fn read_certificates(path: &str) -> Result<Arc<RootCertStore>, String> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())? {
        let certificate = certificate.map_err(|error| error.to_string())?;
        store.add(certificate).map_err(|error| error.to_string())?;
    }
    if store.is_empty() {
        return Err("no certificate in the file".to_owned());
    }
    Ok(Arc::new(store))
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

impl ClickhouseUrl {
    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &str {
        self.database.as_deref().unwrap_or("default")
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

    fn from_str(text: &str) -> Result<Self, ClickhouseUrlFault> {
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
        write!(formatter, "ClickhouseUrl({}{})", self.server, self.database())
    }
}

/// Returns a client, without connecting, so that a process starts while ClickHouse is down.
///
/// It has no timeouts; callers set their own.
#[must_use]
pub fn client(config: &ClickhouseConfig) -> Client {
    let ClickhouseUrl { server, user, password, database } = &config.url;
    let client = if server.starts_with("https:") { encrypted(config.ca.clone()) } else { Client::default() };
    let mut client = client.with_url(server);
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

/// Returns a client that speaks TLS and trusts these certificates.
fn encrypted(ca: Option<Arc<RootCertStore>>) -> Client {
    let trusted = ca.unwrap_or_else(|| {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if store.is_empty() {
            tracing::warn!(
                "this machine trusts no certificates: set HOPLINE_CLICKHOUSE_CA_FILE to reach ClickHouse"
            );
        }
        Arc::new(store)
    });
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    // Never fails: the provider supports the default versions.
    let Ok(versions) = versions else { return Client::default() };
    let tls = versions.with_root_certificates(trusted).with_no_client_auth();
    let mut tcp = HttpConnector::new();
    tcp.set_keepalive(Some(TCP_KEEPALIVE));
    tcp.enforce_http(false);
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1();
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
    let client = { client }.pool_idle_timeout(POOL_IDLE).build(connector.wrap_connector(tcp));
    Client::with_http_client(client)
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
            ("tcp://ch:9000", ClickhouseUrlFault::NotHttp),
            ("ch:8123", ClickhouseUrlFault::NotHttp),
            ("http://ch/a/b", ClickhouseUrlFault::Path),
            ("http://ch/a?async_insert=1", ClickhouseUrlFault::Query),
        ] {
            assert_eq!(text.parse::<ClickhouseUrl>().map(drop), Err(fault), "{text}");
        }
    }
}
