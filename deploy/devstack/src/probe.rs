//! Readiness checks of engines and services.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Cause;
use crate::http::{accepted, client, page};

const TIMEOUT: Duration = Duration::from_secs(2);

/// The readiness check of a server, in the server's protocol.
#[derive(Debug, Clone)]
pub enum Probe {
    /// Kafka's metadata lists a broker.
    Kafka {
        /// `host:port`.
        brokers: String,
    },
    /// ClickHouse answers `/ping` and `SELECT 1`.
    ClickHouse {
        /// `http://user:password@host:port/database`.
        url: String,
    },
    /// The same, and none of its replicated tables is read-only, as they are without ZooKeeper.
    Replica {
        /// `http://user:password@host:port/database`.
        url: String,
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
                Self::Kafka { brokers } => check_kafka(brokers).await,
                Self::ClickHouse { url } => check_clickhouse(url).await,
                Self::Replica { url } => check_replica(url).await,
                Self::Postgres { url } => check_postgres(url).await,
                Self::ZooKeeper { address } => check_zookeeper(address).await,
                Self::Http { url } => page(url).await,
            }
        };
        tokio::time::timeout(TIMEOUT, check).await.unwrap_or_else(|_| Err("no answer within 2 s".into()))
    }
}

async fn check_kafka(brokers: &str) -> Result<(), Cause> {
    let brokers = brokers.to_owned();
    tokio::task::spawn_blocking(move || {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &brokers).set("log_level", "0").set("log.connection.close", "false");
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

async fn check_clickhouse(url: &str) -> Result<(), Cause> {
    let mut ping = without_credentials(&Url::parse(url)?);
    ping.set_path("/ping");
    page(ping.as_str()).await?;
    query(url, "SELECT 1").await.map(drop)
}

async fn check_replica(url: &str) -> Result<(), Cause> {
    check_clickhouse(url).await?;
    let read_only = query(url, "SELECT count() FROM system.replicas WHERE is_readonly").await?;
    match read_only.trim() {
        "0" => Ok(()),
        tables => Err(format!("{tables} of its tables are read-only").into()),
    }
}

/// Runs a statement in ClickHouse, without a default database, and returns the result.
///
/// # Errors
/// The connection's error, or ClickHouse's.
pub async fn query(url: &str, statement: &str) -> Result<String, Cause> {
    let url = Url::parse(url)?;
    let mut request = client()?.post(without_credentials(&url)).body(statement.to_owned());
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

async fn check_zookeeper(address: &str) -> Result<(), Cause> {
    let mut connection = TcpStream::connect(address).await?;
    connection.write_all(b"srvr").await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    if answer.contains("Mode: ") { Ok(()) } else { Err(format!("it answers {answer:?}").into()) }
}

/// Sends a start-up message and reads the server's first answer: a request for the password once the server accepts
/// connections, an error before.
async fn check_postgres(url: &str) -> Result<(), Cause> {
    let url = Url::parse(url)?;
    let host = url.host_str().ok_or("the address has no host")?;
    let mut connection = TcpStream::connect((host, url.port().unwrap_or(5432))).await?;
    let database = url.path().trim_start_matches('/');
    connection.write_all(&startup_message(url.username(), database)?).await?;

    // PostgreSQL's protocol, "Message Formats": one byte of type, four of length, which includes itself.
    let kind = connection.read_u8().await?;
    let length = connection.read_u32().await?;
    match kind {
        b'R' => Ok(()),
        b'E' => {
            let mut fields = Vec::new();
            connection.take(u64::from(length.saturating_sub(4))).read_to_end(&mut fields).await?;
            Err(error_message(&fields).into())
        }
        other => Err(format!("unexpected answer of type {:?}", char::from(other)).into()),
    }
}

/// Returns the first message of a connection, for protocol 3.0.
fn startup_message(user: &str, database: &str) -> Result<Vec<u8>, Cause> {
    let mut body = 196_608_u32.to_be_bytes().to_vec();
    for text in ["user", user, "database", database] {
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    let mut message = u32::try_from(body.len() + 4)?.to_be_bytes().to_vec();
    message.append(&mut body);
    Ok(message)
}

/// Returns the message field (`M`) of an error.
fn error_message(fields: &[u8]) -> String {
    let message = fields.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"M"));
    message
        .map_or_else(|| "error without a message".into(), |text| String::from_utf8_lossy(text).into_owned())
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
    fn a_startup_message_contains_its_length() {
        let message = startup_message("u", "d").unwrap();
        assert_eq!(message, b"\0\0\0\x1b\0\x03\0\0user\0u\0database\0d\0\0");
        assert_eq!(message.len(), 0x1b);
    }

    #[test]
    fn a_postgres_error_is_shown_by_its_message() {
        let fields = b"SFATAL\0C57P03\0Mthe database system is starting up\0\0";
        assert_eq!(error_message(fields), "the database system is starting up");
    }
}
