//! The four programs, as an operator runs them, on a corner of the real engines.

use std::net::SocketAddr;
use std::path::PathBuf;

use devstack::process::Launch;
use devstack::scratch::Scratch;
use devstack::{Probe, Server, ports};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::engines::{Isolated, http_client, isolated};

/// A browser's User-Agent: a click without one is a bot's.
pub const BROWSER: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";

/// The spool's folder among what a deployment keeps.
const SPOOL: &str = "spool";

/// Running programs with an account on the Business plan.
pub struct Deployment {
    /// The engines it runs on.
    pub engines: Isolated,
    /// The redirect edge.
    pub ingest: Server,
    /// Clicks to rows.
    pub processor: Server,
    /// The management API.
    pub api: Server,
    /// Webhooks.
    pub dispatcher: Server,
    /// A read,write key of the account's workspace.
    pub key: String,
    api_url: String,
    edge_url: String,
    environment: Vec<(String, String)>,
    client: reqwest::Client,
    scratch: Scratch,
}

impl Deployment {
    /// Migrates, starts all four programs and waits until they are ready.
    ///
    /// # Panics
    /// When one does not become ready.
    pub async fn start() -> Self {
        Self::start_on(isolated().await, &[]).await
    }

    /// The same on these engines, with more variables than the programs need anyway.
    ///
    /// # Panics
    /// When one does not become ready.
    pub async fn start_on(engines: Isolated, variables: &[(&str, &str)]) -> Self {
        let mut deployment = Self::prepare_with(engines, variables);
        run(&deployment.program("api"), &["migrate"], &deployment.environment).await;
        for server in deployment.services() {
            server.start().await.unwrap();
        }
        deployment.key = deployment.create_account("business").await;
        deployment
    }

    /// Sets everything up and starts nothing.
    ///
    /// # Panics
    /// When no port or no folder can be had.
    pub fn prepare(engines: Isolated) -> Self {
        Self::prepare_with(engines, &[])
    }

    fn prepare_with(engines: Isolated, variables: &[(&str, &str)]) -> Self {
        let scratch = Scratch::new("deployment").unwrap();
        let (api, edge) = (address(), address());
        let operations = [address(), address(), address(), address()];
        let mut environment = environment(&engines, &scratch, &api, &edge, &operations);
        environment.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let service = |name: &str, place: usize| {
            let log = scratch.path().join(format!("{name}.log"));
            let mut launch = Launch::new(binary(name), log);
            launch.environment = environment.clone();
            let url = format!("http://{}", operations[place]);
            Server::new(name, &url, launch, Probe::Http { url: format!("{url}/readyz") })
        };
        Self {
            ingest: service("ingest", 0),
            processor: service("processor", 1),
            api: service("api", 2),
            dispatcher: service("dispatcher", 3),
            key: String::new(),
            api_url: format!("http://{api}"),
            edge_url: format!("http://{edge}"),
            environment,
            client: http_client(),
            engines,
            scratch,
        }
    }

    /// A second API on the same engines, not started yet, and its address.
    ///
    /// # Panics
    /// When no port can be had.
    pub fn another_api(&self) -> (Server, String) {
        let (listen, operations) = (address(), address());
        let server = self.another(
            "api",
            &operations,
            &[("HOPLINE_API_LISTEN", &listen), ("HOPLINE_API_OPERATIONS_LISTEN", &operations)],
        );
        (server, format!("http://{listen}"))
    }

    /// A second dispatcher on the same engines, not started yet.
    ///
    /// # Panics
    /// When no port can be had.
    pub fn another_dispatcher(&self) -> Server {
        let operations = address();
        self.another("dispatcher", &operations, &[("HOPLINE_DISPATCHER_OPERATIONS_LISTEN", &operations)])
    }

    /// A second one of a program, with other values for some variables.
    fn another(&self, name: &str, operations: &str, changed: &[(&str, &str)]) -> Server {
        let log = self.scratch.path().join(format!("another-{name}.log"));
        let mut launch = Launch::new(binary(name), log);
        launch.environment = self.environment.clone();
        for (name, value) in &mut launch.environment {
            if let Some((_, new)) = changed.iter().find(|(changed, _)| changed == name) {
                *value = (*new).to_owned();
            }
        }
        let url = format!("http://{operations}");
        Server::new(name, &url, launch, Probe::Http { url: format!("{url}/readyz") })
    }

    /// The four programs.
    pub fn services(&self) -> [&Server; 4] {
        [&self.ingest, &self.processor, &self.api, &self.dispatcher]
    }

    /// The path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        binary(name)
    }

    /// The variables that the programs run with.
    pub fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// The folder of the edge's spool.
    pub fn spool(&self) -> PathBuf {
        self.scratch.path().join(SPOOL)
    }

    /// Where callers find the API.
    pub fn api_url(&self) -> &str {
        &self.api_url
    }

    /// Where visitors find the edge.
    pub fn edge_url(&self) -> &str {
        &self.edge_url
    }

    /// The address of the edge.
    ///
    /// # Panics
    /// Never: the URL was made of an address.
    pub fn edge_address(&self) -> SocketAddr {
        self.edge_url.trim_start_matches("http://").parse().unwrap()
    }

    /// What a program has logged so far.
    ///
    /// # Panics
    /// When it was never started.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.scratch.path().join(format!("{name}.log"))).unwrap()
    }

    /// Runs `api admin … --json` and returns its answer.
    ///
    /// # Panics
    /// When it fails.
    pub async fn admin(&self, arguments: &[&str]) -> Value {
        let arguments = [&["admin", "--json"][..], arguments].concat();
        serde_json::from_slice(&run(&self.program("api"), &arguments, &self.environment).await).unwrap()
    }

    /// Makes an account on this plan, and returns a read,write key of its workspace.
    ///
    /// # Panics
    /// When it fails.
    pub async fn create_account(&self, plan: &str) -> String {
        let account = self.admin(&["create-account", "--name", "Test", "--plan", plan]).await;
        let workspace = account["workspace_id"].as_str().unwrap();
        let key = self.admin(&["create-key", "--workspace", workspace, "--scope", "read,write"]).await;
        key["key"].as_str().unwrap().to_owned()
    }

    /// Sends a request to the API with the account's key.
    ///
    /// # Panics
    /// When no answer comes, or one that is no JSON.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.send_to(&self.api_url, method, path, body).await
    }

    /// Sends a request to the API at this address with the account's key.
    ///
    /// # Panics
    /// As [`Deployment::send`].
    pub async fn send_to(
        &self,
        api_url: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let mut request = self.client.request(method, format!("{api_url}{path}")).bearer_auth(&self.key);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await.unwrap();
        (status, if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() })
    }

    /// Creates a link that leads to `https://example.com/` and returns it.
    ///
    /// # Panics
    /// When the API refuses.
    pub async fn create_link(&self) -> Value {
        let body = json!({ "name": "A link", "destination": "https://example.com/" });
        let (status, link) = self.send(Method::POST, "/api/links", Some(&body)).await;
        assert_eq!(status, 201, "{link}");
        link
    }

    /// Reads a link with its counters.
    ///
    /// # Panics
    /// When the API refuses.
    pub async fn show_link(&self, id: &str) -> Value {
        let (status, link) = self.send(Method::GET, &format!("/api/links/{id}"), None).await;
        assert_eq!(status, 200, "{link}");
        link
    }

    /// Creates a webhook endpoint and returns it with its secret.
    ///
    /// # Panics
    /// When the API refuses.
    pub async fn create_endpoint(&self, url: &str, events: &[&str]) -> Value {
        let body = json!({ "url": url, "events": events });
        let (status, endpoint) = self.send(Method::POST, "/api/webhooks", Some(&body)).await;
        assert_eq!(status, 201, "{endpoint}");
        endpoint
    }

    /// Follows a short link with a browser from an address, and returns the answer as it comes.
    ///
    /// # Errors
    /// When no answer comes: the edge is down, or died before it answered.
    pub async fn click(&self, slug: &str, from: &str) -> reqwest::Result<Response> {
        self.client
            .get(format!("{}/{slug}", self.edge_url))
            .header("user-agent", BROWSER)
            .header("x-forwarded-for", from)
            .send()
            .await
    }

    /// Asks where a short link leads without clicking it, and returns the status.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn head(&self, slug: &str) -> reqwest::Result<u16> {
        let request = self.client.head(format!("{}/{slug}", self.edge_url)).header("user-agent", BROWSER);
        Ok(request.send().await?.status().as_u16())
    }

    /// Registers a conversion and returns its status.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn convert(&self, click_id: &str) -> u16 {
        let body = json!({ "click_id": click_id });
        self.send(Method::POST, "/api/conversions", Some(&body)).await.0
    }
}

/// The click id that a redirect put on its destination.
///
/// # Panics
/// When there is none.
pub fn click_id(redirect: &Response) -> String {
    let location = redirect.headers()["location"].to_str().unwrap();
    let url = reqwest::Url::parse(location).unwrap();
    url.query_pairs().find(|(name, _)| name == "click_id").unwrap().1.into_owned()
}

/// Runs a program to its end and returns what it printed.
///
/// # Panics
/// When it fails; the message has what it logged.
async fn run(program: &PathBuf, arguments: &[&str], environment: &[(String, String)]) -> Vec<u8> {
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{} {}: {}",
        program.display(),
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// A program of this workspace, built beside the test that runs.
///
/// # Panics
/// When it was not built.
pub fn binary(name: &str) -> PathBuf {
    // …/target/debug/deps/it-0123 runs, or …/target/debug/soak; …/target/debug/api is wanted.
    let running = std::env::current_exe().unwrap();
    let folders = running.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built beside {}: run ./dev test", running.display()))
}

/// An address that nobody listens on.
fn address() -> String {
    format!("127.0.0.1:{}", ports::free().unwrap())
}

fn environment(
    engines: &Isolated,
    scratch: &Scratch,
    api: &str,
    edge: &str,
    operations: &[String; 4],
) -> Vec<(String, String)> {
    let key = |byte: &str| byte.repeat(32);
    [
        ("KAFKA_BROKERS", engines.kafka_brokers.clone()),
        ("CLICKHOUSE_URL", engines.clickhouse_url.clone()),
        ("DATABASE_URL", engines.database_url.clone()),
        ("HOPLINE_TOPIC_PREFIX", engines.topic_prefix.clone()),
        ("HOPLINE_API_LISTEN", api.to_owned()),
        ("HOPLINE_EDGE_LISTEN", edge.to_owned()),
        ("HOPLINE_INGEST_OPERATIONS_LISTEN", operations[0].clone()),
        ("HOPLINE_PROCESSOR_OPERATIONS_LISTEN", operations[1].clone()),
        ("HOPLINE_API_OPERATIONS_LISTEN", operations[2].clone()),
        ("HOPLINE_DISPATCHER_OPERATIONS_LISTEN", operations[3].clone()),
        ("HOPLINE_PUBLIC_URL", format!("http://{edge}")),
        ("HOPLINE_TRUSTED_PROXIES", "127.0.0.0/8".to_owned()),
        ("HOPLINE_WEBHOOK_ALLOW", "127.0.0.0/8".to_owned()),
        ("HOPLINE_CLICK_ID_KEYS", format!("1:{}", key("11"))),
        ("HOPLINE_SECRET_KEYS", format!("1:{}", key("22"))),
        ("HOPLINE_VISITOR_KEY", key("33")),
        ("HOPLINE_SPOOL_DIR", scratch.path().join(SPOOL).display().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}
