//! An edge that runs in this process, and helpers for requests and topics.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser as _;
use ingest::Config;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use reqwest::header::HeaderValue;
use reqwest::{Method, Response};
use schemas::click_id::ClickIdKeys;
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{Click, DeletedLink, ForwardQuery, Link, LinkRecord, Message};
use schemas::topic;
use service::Shutdown;
use service::metrics::Metrics;
use tests::engines::Isolated;
use tests::log::records;
use tests::{PATIENCE, eventually, readyz};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use uuid::Uuid;

pub(crate) const BROWSER: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";

/// The key of click ids and visitors: 32 bytes of 1.
pub(crate) const KEY: &str = "0101010101010101010101010101010101010101010101010101010101010101";

/// A running edge.
pub(crate) struct Edge {
    pub(crate) address: SocketAddr,
    pub(crate) operations: SocketAddr,
    shutdown: Shutdown,
    task: JoinHandle<anyhow::Result<()>>,
}

/// A directory for a spool, removed when the test ends.
pub(crate) struct SpoolDir(PathBuf);

impl SpoolDir {
    pub(crate) fn new() -> Self {
        Self(std::env::temp_dir().join(format!("hopline-ingest-{}", Uuid::now_v7())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the segment files.
    pub(crate) fn segments(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "clicks")).collect()
    }
}

impl Drop for SpoolDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn config(brokers: &str, prefix: &str, spool: &Path) -> Config {
    let spool = spool.to_str().unwrap();
    let keys = format!("1:{KEY}");
    let arguments = [
        ("--kafka-brokers", brokers),
        ("--topic-prefix", prefix),
        ("--click-id-keys", &keys),
        ("--visitor-key", KEY),
        ("--spool-dir", spool),
        ("--trusted-proxies", "127.0.0.0/8,::1/128"),
    ];
    let arguments = arguments.map(|(name, value)| format!("{name}={value}"));
    Config::try_parse_from(std::iter::once("ingest".to_owned()).chain(arguments)).unwrap()
}

impl Edge {
    /// Starts an edge on the test's own topics and waits until it has loaded the links.
    pub(crate) async fn start(isolated: &Isolated, spool: &SpoolDir) -> Self {
        let edge = Self::start_with(&isolated.kafka_brokers, &isolated.topic_prefix, spool).await;
        edge.is_ready().await;
        edge
    }

    pub(crate) async fn start_with(brokers: &str, prefix: &str, spool: &SpoolDir) -> Self {
        Self::start_as(config(brokers, prefix, spool.path())).await
    }

    pub(crate) async fn start_as(config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let operations = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shutdown = Shutdown::new(Duration::from_secs(20));
        let metrics = Metrics::install("ingest", ingest::METRICS).unwrap();
        let (address, operations_address) =
            (listener.local_addr().unwrap(), operations.local_addr().unwrap());
        let task = tokio::spawn(ingest::run(config, listener, operations, metrics, shutdown.clone()));
        Self { address, operations: operations_address, shutdown, task }
    }

    /// Waits until every check is ready.
    pub(crate) async fn is_ready(&self) {
        eventually("the edge is ready", async || match self.readyz().await {
            (200, _) => Ok(()),
            (_, report) => Err(report),
        })
        .await;
    }

    /// Returns the status and the report of `/readyz`.
    pub(crate) async fn readyz(&self) -> (u16, serde_json::Value) {
        readyz(&format!("http://{}", self.operations)).await
    }

    /// Sends a GET request with a browser's User-Agent.
    pub(crate) async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path, &[("user-agent", BROWSER.as_bytes())]).await
    }

    pub(crate) async fn request(&self, method: Method, path: &str, headers: &[(&str, &[u8])]) -> Response {
        request(self.address, method, path, headers).await
    }

    /// Waits until a path answers with this status.
    pub(crate) async fn answers(&self, path: &str, status: u16) {
        answers(self.address, path, status).await;
    }

    /// Stops the edge like SIGTERM and waits for its end.
    pub(crate) async fn stop(self) {
        self.shutdown.request();
        self.task.await.unwrap().unwrap();
        assert_eq!(self.shutdown.unfinished(), Vec::<&str>::new());
    }
}

pub(crate) fn client() -> reqwest::Client {
    tests::engines::http_client()
}

pub(crate) async fn request(
    address: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &[u8])],
) -> Response {
    let mut request = client().request(method, format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
    }
    request.send().await.unwrap()
}

/// Waits until a path answers with this status. Sends HEAD, which is not counted.
pub(crate) async fn answers(address: SocketAddr, path: &str, status: u16) {
    eventually(&format!("{path} answers {status}"), async || {
        let seen =
            client().head(format!("http://{address}{path}")).send().await.map(|answer| answer.status());
        match seen {
            Ok(seen) if seen.as_u16() == status => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

pub(crate) fn location(answer: &Response) -> String {
    answer.headers()["location"].to_str().unwrap().to_owned()
}

/// Returns the click id in an answer's destination and verifies it.
pub(crate) fn click_id(answer: &Response) -> String {
    let url = reqwest::Url::parse(&location(answer)).unwrap();
    let id = url.query_pairs().find(|(name, _)| name == "click_id").unwrap().1.into_owned();
    click_id_keys().verify(&id).unwrap();
    id
}

pub(crate) fn click_id_keys() -> ClickIdKeys {
    ClickIdKeys::new((1, [1; 32]), [])
}

/// Returns a link with the API's defaults.
pub(crate) fn link(slug: &str, destination: &str) -> Link {
    Link {
        version: Default::default(),
        id: LinkId::from_uuid(Uuid::now_v7()),
        revision: 1,
        workspace_id: WorkspaceId::from_uuid(Uuid::from_u128(7)),
        slug: slug.to_owned(),
        destination: destination.to_owned(),
        is_active: true,
        redirect_status: 302,
        forward_query: ForwardQuery::Append,
        append_click_id: true,
        expires_at: None,
        is_blocked: false,
    }
}

/// Publishes records of links in order.
pub(crate) fn publish(isolated: &Isolated, records: &[LinkRecord]) {
    publish_to(&isolated.kafka(), &isolated.topic(topic::LINKS), records);
}

pub(crate) fn publish_to(config: &ClientConfig, topic: &str, records: &[LinkRecord]) {
    for record in records {
        let (LinkRecord::Live(Link { id, .. }) | LinkRecord::Deleted(DeletedLink { id, .. })) = record;
        publish_bytes(config, topic, &id.to_string(), &record.encode());
    }
}

pub(crate) fn publish_bytes(config: &ClientConfig, topic: &str, key: &str, value: &[u8]) {
    let producer: BaseProducer = config.create().unwrap();
    producer.send(BaseRecord::to(topic).key(key).payload(value).partition(0)).unwrap();
    producer.flush(PATIENCE).unwrap();
}

pub(crate) fn live(link: &Link) -> LinkRecord {
    LinkRecord::Live(link.clone())
}

pub(crate) fn deleted(link: &Link, revision: u64) -> LinkRecord {
    LinkRecord::Deleted(DeletedLink {
        version: Default::default(),
        id: link.id,
        revision,
        workspace_id: None,
        deleted_at: chrono::Utc::now(),
    })
}

/// Waits until the topic has at least `count` clicks, and returns them with their partitions.
pub(crate) async fn clicks(isolated: &Isolated, count: usize) -> Vec<(i32, Click)> {
    eventually("the clicks are on the topic", async || {
        let isolated = isolated.clone();
        let seen = tokio::task::spawn_blocking(move || records(&isolated, topic::CLICKS)).await.unwrap();
        if seen.len() < count {
            return Err(seen.len());
        }
        Ok(seen
            .iter()
            .map(|record| {
                let click = Click::decode(&record.value).unwrap();
                assert_eq!(record.key, click.click_id);
                (record.partition, click)
            })
            .collect())
    })
    .await
}
