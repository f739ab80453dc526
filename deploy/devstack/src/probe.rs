//! Readiness checks of engines and services.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use reqwest::Url;
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::http::{accepted, client_for, page};
use crate::{Cause, Tls};

const TIMEOUT: Duration = Duration::from_secs(2);

/// The readiness check of a server, in the server's protocol.
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
                Self::ClickHouse { url, ca } => check_clickhouse(url, ca.as_deref()).await,
                Self::Replica { url, ca } => check_replica(url, ca.as_deref()).await,
                Self::Postgres { url } => Ok(PgConnection::connect(url).await?.close().await?),
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
}
