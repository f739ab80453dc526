//! Readiness checks of engines and services.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::select_ok;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use reqwest::Url;
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::http::{accepted, client_for, page};
use crate::{Cause, Tls};

const TIMEOUT: Duration = Duration::from_secs(2);

/// The readiness check of a server, in the server's protocol. Of several hosts in a URL, one that is ready is enough.
#[derive(Debug, Clone)]
pub enum Probe {
    /// Kafka's metadata lists a broker.
    Kafka {
        /// The settings of a client.
        client: ClientConfig,
    },
    /// ClickHouse answers `/ping` and `SELECT 1`.
    ClickHouse {
        /// `http://user:password@host:port/database`.
        url: String,
        /// The authority of an `https` URL.
        ca: Option<PathBuf>,
    },
    /// The same, and none of its replicated tables is read-only, as they are without ZooKeeper.
    Replica {
        /// `http://user:password@host:port/database`.
        url: String,
        /// The authority of an `https` URL.
        ca: Option<PathBuf>,
    },
    /// Postgres accepts a connection to the database.
    Postgres {
        /// `postgres://user:password@host:port/database`.
        url: String,
    },
    /// ZooKeeper answers `srvr` with its mode, which it has once it serves sessions.
    ZooKeeper {
        /// `host:port`.
        address: String,
        /// The certificate that it asks for.
        tls: Option<Tls>,
    },
    /// A GET returns a 2xx status.
    Http {
        /// The address of the page.
        url: String,
    },
}

impl Probe {
    /// Checks once, for at most 2 s.
    ///
    /// # Errors
    /// The reason why the server is not ready.
    pub async fn check(&self) -> Result<(), Cause> {
        let check = async {
            match self {
                Self::Kafka { client } => check_kafka(client.clone()).await,
                Self::ClickHouse { url, ca } => {
                    let hosts = each_host(url);
                    let checks = hosts.iter().map(|host| Box::pin(check_clickhouse(host, ca.as_deref())));
                    select_ok(checks).await.map(drop)
                }
                Self::Replica { url, ca } => check_replica(url, ca.as_deref()).await,
                Self::Postgres { url } => {
                    let hosts = each_host(url);
                    select_ok(hosts.iter().map(|host| Box::pin(check_postgres(host)))).await.map(drop)
                }
                Self::ZooKeeper { address, tls } => check_zookeeper(address, tls.as_ref()).await,
                Self::Http { url } => page(url).await,
            }
        };
        tokio::time::timeout(TIMEOUT, check).await.unwrap_or_else(|_| Err("no answer within 2 s".into()))
    }
}

async fn check_kafka(mut config: ClientConfig) -> Result<(), Cause> {
    tokio::task::spawn_blocking(move || {
        config.set("log_level", "0").set("log.connection.close", "false");
        let client: BaseConsumer<Quiet> = config.create_with_context(Quiet)?;
        let metadata = client.fetch_metadata(None, TIMEOUT)?;
        if metadata.brokers().is_empty() { Err("no broker is registered yet".into()) } else { Ok(()) }
    })
    .await?
}

/// A Kafka client's context that drops log lines: a broker that is still starting causes many.
struct Quiet;

impl rdkafka::ClientContext for Quiet {
    fn log(&self, _level: rdkafka::config::RDKafkaLogLevel, _facility: &str, _message: &str) {}
    fn error(&self, _error: rdkafka::error::KafkaError, _reason: &str) {}
}

impl rdkafka::consumer::ConsumerContext for Quiet {}

async fn check_postgres(url: &str) -> Result<(), Cause> {
    Ok(PgConnection::connect(url).await?.close().await?)
}

async fn check_clickhouse(url: &str, ca: Option<&Path>) -> Result<(), Cause> {
    let mut ping = without_credentials(&Url::parse(url)?);
    ping.set_path("/ping");
    accepted(client_for(&ping, ca)?.get(ping).send().await?).await?;
    query(url, ca, "SELECT 1").await.map(drop)
}

async fn check_replica(url: &str, ca: Option<&Path>) -> Result<(), Cause> {
    check_clickhouse(url, ca).await?;
    let read_only = query(url, ca, "SELECT count() FROM system.replicas WHERE is_readonly").await?;
    match read_only.trim() {
        "0" => Ok(()),
        tables => Err(format!("{tables} of its tables are read-only").into()),
    }
}

/// Returns the URL of each host of a URL, which may list several as `scheme://user@host:port,host:port/database`.
#[must_use]
pub fn each_host(url: &str) -> Vec<String> {
    let authority = url.split_once("://").map_or(0, |(scheme, _)| scheme.len() + 3);
    let end = url[authority..].find(['/', '?']).map_or(url.len(), |length| authority + length);
    let start = url[authority..end].rfind('@').map_or(authority, |length| authority + length + 1);
    url[start..end].split(',').map(|host| format!("{}{host}{}", &url[..start], &url[end..])).collect()
}

/// Runs a statement in ClickHouse, without a default database, and returns the result. The certificate of an `https`
/// URL is of this authority, or else of one that the system trusts.
///
/// # Errors
/// The connection's error, or ClickHouse's.
pub async fn query(url: &str, ca: Option<&Path>, statement: &str) -> Result<String, Cause> {
    let url = Url::parse(url)?;
    let mut request = client_for(&url, ca)?.post(without_credentials(&url)).body(statement.to_owned());
    if !url.username().is_empty() {
        request = request.basic_auth(url.username(), url.password());
    }
    accepted(request.send().await?).await
}

/// Returns the URL with only its scheme, host and port.
fn without_credentials(url: &Url) -> Url {
    let mut plain = url.clone();
    plain.set_path("/");
    plain.set_query(None);
    // Neither fails on an http URL.
    let _ = plain.set_username("");
    let _ = plain.set_password(None);
    plain
}

async fn check_zookeeper(address: &str, tls: Option<&Tls>) -> Result<(), Cause> {
    let connection = TcpStream::connect(address).await?;
    match tls {
        Some(tls) => answers_srvr(tls.connect(connection).await?).await,
        None => answers_srvr(connection).await,
    }
}

async fn answers_srvr(mut connection: impl AsyncRead + AsyncWrite + Unpin) -> Result<(), Cause> {
    connection.write_all(b"srvr").await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    if answer.contains("Mode: ") { Ok(()) } else { Err(format!("it answers {answer:?}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clickhouse_query_does_not_send_credentials_in_the_url() {
        let url = Url::parse("http://user:secret@127.0.0.1:8123/hopline").unwrap();
        assert_eq!(without_credentials(&url).as_str(), "http://127.0.0.1:8123/");
    }

    #[test]
    fn each_host_of_a_url_has_a_url() {
        assert_eq!(
            each_host("http://u:p@a:1,b:2/db?x=@y"),
            ["http://u:p@a:1/db?x=@y", "http://u:p@b:2/db?x=@y"]
        );
        assert_eq!(each_host("http://a:1,[::1]:2"), ["http://a:1", "http://[::1]:2"]);
        assert_eq!(each_host("http://a:1/"), ["http://a:1/"]);
    }
}
