//! An API for one test.

use std::time::Duration;

use api::{Command, Config};
use clap::Parser as _;
use reqwest::{Method, StatusCode};
use schemas::click_id::ClickIdKeys;
use schemas::grants::User;
use serde_json::Value;
use service::Shutdown;
use service::metrics::Metrics;
use tests::engines::{Isolated, http_client, isolated};
use tests::{ANSWER, PATIENCE, eventually};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const CLICK_ID_KEY: [u8; 32] = [0x11; 32];

/// A running API with an account on the Business plan.
pub(crate) struct Server {
    pub(crate) engines: Isolated,
    pub(crate) url: String,
    pub(crate) operations: String,
    pub(crate) account: String,
    pub(crate) workspace: String,
    /// A read,write key of the workspace.
    pub(crate) key: String,
    client: reqwest::Client,
    shutdown: Shutdown,
    task: JoinHandle<anyhow::Result<()>>,
}

/// An answer with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

impl Server {
    /// Starts an API on isolated engines.
    pub(crate) async fn start() -> Self {
        Self::start_on(isolated().await).await
    }

    /// Starts an API on these engines, which may be unreachable.
    pub(crate) async fn start_on(engines: Isolated) -> Self {
        let config = config(&engines);
        Self::serve(engines, config).await.with_account("business").await
    }

    /// Creates an account on that plan, with a key that may write.
    pub(crate) async fn with_account(mut self, plan: &str) -> Self {
        let account = self.admin(&["create-account", "--name", "Test", "--plan", plan]).await;
        self.account = text(&account["account_id"]);
        self.workspace = text(&account["workspace_id"]);
        self.key = self.create_key(&self.workspace.clone(), "read,write").await;
        self
    }

    /// Starts an API on which the Agency plan has this number of links, with the account on it.
    pub(crate) async fn start_with_cap(links: u64) -> Self {
        let engines = isolated().await;
        let mut plans: Value = serde_json::from_str(include_str!("../../plans.json")).unwrap();
        plans["agency"]["links"] = links.into();
        let mut config = config(&engines);
        config.plans = Some(serde_json::from_value(plans).unwrap());
        Self::serve(engines, config).await.with_account("agency").await
    }

    /// Starts an API without an account.
    pub(crate) async fn serve(engines: Isolated, config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let operations = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let operations_url = format!("http://{}", operations.local_addr().unwrap());
        let shutdown = Shutdown::new(Duration::from_secs(10));
        let metrics = Metrics::install("api", api::METRICS).unwrap();
        let task = tokio::spawn(api::run(config, listener, operations, metrics, shutdown.clone()));
        Self {
            engines,
            url,
            operations: operations_url,
            account: String::new(),
            workspace: String::new(),
            key: String::new(),
            client: http_client(),
            shutdown,
            task,
        }
    }

    /// Stops the API as SIGTERM does and waits for its end.
    pub(crate) async fn stop(self) -> Isolated {
        self.shutdown.request();
        self.task.await.unwrap().unwrap();
        self.engines
    }

    /// Runs `api admin …` and returns its JSON.
    pub(crate) async fn admin(&self, arguments: &[&str]) -> Value {
        let settings = engine_arguments(&self.engines);
        let command = ["admin", "--json"].into_iter().chain(arguments.iter().copied());
        let config = Config::parse_from(
            std::iter::once("api").chain(settings.iter().map(String::as_str)).chain(command),
        );
        let Some(Command::Admin(admin)) = config.command.clone() else { panic!("not an admin command") };
        serde_json::from_str(&api::administer(&config, admin).await.unwrap()).unwrap()
    }

    /// Returns the number of messages in the outbox.
    pub(crate) async fn outbox(&self) -> i64 {
        let waiting = sqlx::query_scalar("SELECT count(*) FROM outbox");
        waiting.fetch_one(&mut self.engines.postgres().await).await.unwrap()
    }

    /// Waits until Kafka has every change.
    pub(crate) async fn all_published(&self) {
        eventually("the outbox is empty", async || match self.outbox().await {
            0 => Ok(()),
            waiting => Err(waiting),
        })
        .await;
    }

    /// Creates a key of a workspace.
    pub(crate) async fn create_key(&self, workspace: &str, scope: &str) -> String {
        text(&self.admin(&["create-key", "--workspace", workspace, "--scope", scope]).await["key"])
    }

    /// Sends a request with the account's key.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        self.send_as(&self.key, method, path, body).await
    }

    /// Sends a request with any key.
    pub(crate) async fn send_as(&self, key: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
        let mut request = self.request(method, path).bearer_auth(key);
        if let Some(body) = body {
            request = request.json(&body);
        }
        answer(request).await
    }

    /// Prepares a request without a key.
    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }

    /// Creates a link and returns it.
    pub(crate) async fn create_link(&self, body: Value) -> Value {
        let answer = self.send(Method::POST, "/api/v1/links", Some(body)).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.body
    }

    /// The keys with which this API verifies click ids.
    pub(crate) fn click_ids(&self) -> ClickIdKeys {
        ClickIdKeys::new((1, CLICK_ID_KEY), [])
    }
}

/// Sends a request and reads its answer; an empty body is null. Checks that an error's messages are for people.
pub(crate) async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let headers = answer.headers().clone();
    let bytes = answer.bytes().await.unwrap();
    let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
    if status.is_client_error() || status.is_server_error() {
        check_messages(&body);
    }
    Answer { status, headers, body }
}

/// Checks that every message is a sentence, and none a parser's message.
fn check_messages(error: &Value) {
    let details = error["details"].as_array().into_iter().flatten();
    for message in details.chain([error]).filter_map(|one| one["message"].as_str()) {
        let is_sentence = message.starts_with(|first: char| first.is_uppercase()) && message.ends_with('.');
        let is_parsers = [" at line ", "`", "invalid type", "expected ", "EOF", "digit", "serde", "refused"]
            .into_iter()
            .any(|word| message.contains(word));
        assert!(is_sentence && !is_parsers, "not a message for people: {error}");
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}

/// Returns the configuration of an API on these engines, whose requests wait for Postgres, ClickHouse and their clients
/// as long as a busy machine needs.
pub(crate) fn config(engines: &Isolated) -> Config {
    let mut config = in_production(engines);
    config.postgres.acquire_timeout = ANSWER;
    config.stats_timeout = ANSWER;
    config.counters_timeout = ANSWER;
    config.limits.write_timeout = PATIENCE;
    config
}

/// Returns the configuration of production, where a request without a connection gets 503 after 3 s.
pub(crate) fn in_production(engines: &Isolated) -> Config {
    Config::parse_from(std::iter::once("api").chain(engine_arguments(engines).iter().map(String::as_str)))
}

fn engine_arguments(engines: &Isolated) -> Vec<String> {
    let hex = |byte: u8| format!("1:{}", format!("{byte:02x}").repeat(32));
    [
        ("--kafka-brokers", engines.kafka_brokers.clone()),
        ("--topic-prefix", engines.topic_prefix.clone()),
        ("--database-url", engines.database_url_of(User::Api)),
        ("--clickhouse-url", engines.clickhouse_url_of(User::Api)),
        ("--public-url", "https://go.example".to_owned()),
        ("--click-id-keys", hex(0x11)),
        ("--secret-keys", hex(0x22)),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect()
}
