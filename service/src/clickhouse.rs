//! The ClickHouse client: of one server, or of the replicas of a cluster.

mod places;
mod replicas;
pub mod text;
mod url;

use std::sync::Arc;
use std::time::Duration;

use clickhouse::Client;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::ExposeSecret as _;

use self::places::Known;
pub use self::replicas::{Clickhouse, watch};
pub use self::url::{ClickhouseUrl, ClickhouseUrlFault, Everywhere, quoted};

/// How long a connection is idle before TCP asks whether the server is there, as in the library's own client.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// How long an idle connection is kept: less than ClickHouse's 3 s, as in the library's own client.
const POOL_IDLE: Duration = Duration::from_secs(2);

/// The connection to ClickHouse; flatten it into the service's `Config`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "ClickHouse")]
pub struct ClickhouseConfig {
    /// ClickHouse, as https://user:password@host:port/database; of a cluster, all replicas of all shards: host:port,….
    #[arg(
        id = "clickhouse_url",
        long = "clickhouse-url",
        value_name = "URL",
        env = "CLICKHOUSE_URL",
        hide_env_values = true
    )]
    pub url: ClickhouseUrl,

    /// The name of ClickHouse's cluster, as in system.clusters, whose replicas the URL lists; without it, a single
    /// server.
    #[arg(
        id = "clickhouse_cluster",
        long = "clickhouse-cluster",
        value_name = "NAME",
        env = "HOPLINE_CLICKHOUSE_CLUSTER"
    )]
    pub cluster: Option<String>,

    /// Certificates in PEM, one of which signed that of ClickHouse; without it, the machine's own list applies.
    #[arg(
        id = "clickhouse_ca",
        long = "clickhouse-ca-file",
        value_name = "PATH",
        env = "HOPLINE_CLICKHOUSE_CA_FILE",
        value_parser = read_certificates
    )]
    pub ca: Option<Arc<RootCertStore>>,

    /// What the whole process knows of the replicas.
    #[arg(skip)]
    known: Known,
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

impl ClickhouseConfig {
    /// Returns a configuration of a server without certificates of its own.
    #[must_use]
    pub fn of(url: ClickhouseUrl) -> Self {
        Self { url, cluster: None, ca: None, known: Known::default() }
    }
}

/// Returns a client of each server.
fn clients(config: &ClickhouseConfig) -> Vec<Client> {
    let ClickhouseUrl { servers, user, password, database } = &config.url;
    let mut client = if config.url.is_encrypted() { encrypted(config.ca.clone()) } else { Client::default() };
    if let Some(user) = user {
        client = client.with_user(user);
    }
    if let Some(password) = password {
        client = client.with_password(password.expose_secret());
    }
    if let Some(database) = database {
        client = client.with_database(database);
    }
    servers.iter().map(|server| client.clone().with_url(server)).collect()
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
