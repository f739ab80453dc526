//! The four programs, as an operator runs them, on isolated parts of the real engines.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use devstack::process::Launch;
use devstack::scratch::Scratch;
use devstack::{Probe, Server};
use reqwest::{Method, Response};
use schemas::grants::User;
use serde_json::{Value, json};

use crate::engines::{Isolated, http_client, isolated};
use crate::signals::stop;
use crate::{eventually, eventually_within, free_address};

/// A browser's User-Agent: a click without one is a bot's.
pub const BROWSER: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";

/// The name of the spool's folder.
const SPOOL: &str = "spool";

/// The four programs, and an account on the Business plan.
pub struct Deployment {
    /// The engines of the deployment.
    pub engines: Isolated,
    /// The redirect edge.
    pub ingest: Server,
    /// The processor.
    pub processor: Server,
    /// The management API.
    pub api: Server,
    /// The dispatcher.
    pub dispatcher: Server,
    /// A `read,write` key of the account's workspace.
    pub key: String,
    api_url: String,
    edge_url: String,
    environment: Vec<(String, String)>,
    client: reqwest::Client,
    scratch: Scratch,
}

impl Deployment {
    /// Migrates the databases, starts all four programs and waits until they are ready.
    ///
    /// # Panics
    /// When a program does not become ready.
    pub async fn start() -> Self {
        Self::start_on(isolated().await, &[]).await
    }

    /// The same on these engines, with additional variables.
    ///
    /// # Panics
    /// When one does not become ready.
    pub async fn start_on(engines: Isolated, variables: &[(&str, &str)]) -> Self {
        Self::start_release(engines, variables, &programs()).await
    }

    /// The same with the programs of this folder, such as those of an earlier release.
    ///
    /// # Panics
    /// When one does not become ready.
    pub async fn start_release(engines: Isolated, variables: &[(&str, &str)], programs: &Path) -> Self {
        let mut deployment = Self::prepare_with(engines, variables, programs);
        deployment.migrate(programs).await;
        for server in deployment.services() {
            server.start().await.unwrap();
        }
        deployment.key = deployment.create_account("business").await;
        deployment
    }

    /// Prepares a deployment without starting it.
    ///
    /// # Panics
    /// When no port or no folder is available.
    pub fn prepare(engines: Isolated) -> Self {
        Self::prepare_with(engines, &[], &programs())
    }

    fn prepare_with(engines: Isolated, variables: &[(&str, &str)], programs: &Path) -> Self {
        let scratch = Scratch::new("deployment").unwrap();
        let address = || free_address().to_string();
        let (api, edge) = (address(), address());
        let operations = [address(), address(), address(), address()];
        let mut environment = environment(&scratch, &api, &edge, &operations);
        environment.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let service = |name: &str, place: usize| {
            let log = scratch.path().join(format!("{name}.log"));
            let mut launch = Launch::new(programs.join(name), log);
            launch.environment =
                [engines.variables_of(User::of(name).unwrap()), environment.clone()].concat();
            server(name, &format!("http://{}", operations[place]), launch)
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

    /// Prepares a second API on the same engines, and returns its address.
    ///
    /// # Panics
    /// When no port is available.
    pub fn another_api(&self) -> (Server, String) {
        let (listen, operations) = (free_address().to_string(), free_address().to_string());
        let server = self.another(
            "api",
            &operations,
            &[("HOPLINE_API_LISTEN", &listen), ("HOPLINE_API_OPERATIONS_LISTEN", &operations)],
        );
        (server, format!("http://{listen}"))
    }

    /// Prepares a second dispatcher on the same engines.
    ///
    /// # Panics
    /// When no port is available.
    pub fn another_dispatcher(&self) -> Server {
        let operations = free_address().to_string();
        self.another("dispatcher", &operations, &[("HOPLINE_DISPATCHER_OPERATIONS_LISTEN", &operations)])
    }

    /// Prepares a second instance of a program, with changed variables.
    fn another(&self, name: &str, operations: &str, changed: &[(&str, &str)]) -> Server {
        let log = self.scratch.path().join(format!("another-{name}.log"));
        let mut launch = Launch::new(binary(name), log);
        launch.environment = self.environment_of(User::of(name).unwrap());
        for (name, value) in &mut launch.environment {
            if let Some((_, new)) = changed.iter().find(|(changed, _)| changed == name) {
                *value = (*new).to_owned();
            }
        }
        server(name, &format!("http://{operations}"), launch)
    }

    /// Runs `api migrate` of this folder.
    ///
    /// # Panics
    /// When it fails.
    pub async fn migrate(&self, programs: &Path) {
        self.run(User::Migrate, &programs.join("api"), &["migrate"]).await;
    }

    /// Stops a program and prepares the one of this folder with the same settings, without starting it.
    ///
    /// # Panics
    /// When it does not end by itself with exit code 0.
    pub async fn replace(&mut self, name: &str, programs: &Path) {
        let services = [&mut self.ingest, &mut self.processor, &mut self.api, &mut self.dispatcher];
        let former = services.into_iter().find(|service| service.name() == name).unwrap();
        stop(former).await;
        let launch = Launch { program: programs.join(name), ..former.launch().clone() };
        *former = server(name, former.url(), launch);
    }

    /// The four programs.
    pub fn services(&self) -> [&Server; 4] {
        [&self.ingest, &self.processor, &self.api, &self.dispatcher]
    }

    /// Returns the variables with which a user of the engines runs a program.
    pub fn environment_of(&self, user: User) -> Vec<(String, String)> {
        [self.engines.variables_of(user), self.environment.clone()].concat()
    }

    /// The folder of the edge's spool.
    pub fn spool(&self) -> PathBuf {
        self.scratch.path().join(SPOOL)
    }

    /// The URL of the API.
    pub fn api_url(&self) -> &str {
        &self.api_url
    }

    /// The URL of the edge.
    pub fn edge_url(&self) -> &str {
        &self.edge_url
    }

    /// The address of the edge.
    ///
    /// # Panics
    /// Never: the URL contains an address.
    pub fn edge_address(&self) -> SocketAddr {
        self.edge_url.trim_start_matches("http://").parse().unwrap()
    }

    /// Returns the log of a program.
    ///
    /// # Panics
    /// When it was never started.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.scratch.path().join(format!("{name}.log"))).unwrap()
    }

    /// Runs a program to its end as a user of the engines, and returns its output.
    ///
    /// # Panics
    /// When it fails; the message contains its log.
    pub async fn run(&self, user: User, program: &Path, arguments: &[&str]) -> Vec<u8> {
        let output = tokio::process::Command::new(program)
            .args(arguments)
            .envs(self.environment_of(user))
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

    /// Runs `api admin … --json` and returns its answer.
    ///
    /// # Panics
    /// When it fails.
    pub async fn admin(&self, arguments: &[&str]) -> Value {
        let arguments = [&["admin", "--json"][..], arguments].concat();
        serde_json::from_slice(&self.run(User::Api, &binary("api"), &arguments).await).unwrap()
    }

    /// Creates an account on this plan, and returns a `read,write` key of its workspace.
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
    /// When there is no answer, or the answer is not JSON.
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

    /// Creates a link to `https://example.com/` and returns it.
    ///
    /// # Panics
    /// When the API rejects it.
    pub async fn create_link(&self) -> Value {
        let (status, link) = self.try_create_link().await;
        assert_eq!(status, 201, "{link}");
        link
    }

    /// The same, for an API that may reject it: returns the status and the answer.
    ///
    /// # Panics
    /// As [`Deployment::send`].
    pub async fn try_create_link(&self) -> (u16, Value) {
        let body = json!({ "name": "A link", "destination": "https://example.com/" });
        self.send(Method::POST, "/api/links", Some(&body)).await
    }

    /// Returns a link with its counts.
    ///
    /// # Panics
    /// When the API rejects it.
    pub async fn show_link(&self, id: &str) -> Value {
        let (status, link) = self.send(Method::GET, &format!("/api/links/{id}"), None).await;
        assert_eq!(status, 200, "{link}");
        link
    }

    /// Creates a webhook endpoint and returns it with its secret.
    ///
    /// # Panics
    /// When the API rejects it.
    pub async fn create_endpoint(&self, url: &str, events: &[&str]) -> Value {
        let body = json!({ "url": url, "events": events });
        let (status, endpoint) = self.send(Method::POST, "/api/webhooks", Some(&body)).await;
        assert_eq!(status, 201, "{endpoint}");
        endpoint
    }

    /// Returns the number of deliveries that wait.
    ///
    /// # Panics
    /// When Postgres does not answer.
    pub async fn waiting_deliveries(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM webhook_deliveries")
            .fetch_one(&mut self.engines.postgres().await)
            .await
            .unwrap()
    }

    /// Waits until no delivery waits.
    ///
    /// # Panics
    /// When one still waits at the deadline.
    pub async fn no_delivery_waits(&self, deadline: Duration) {
        eventually_within("no delivery waits", deadline, async || match self.waiting_deliveries().await {
            0 => Ok(()),
            waiting => Err(waiting),
        })
        .await;
    }

    /// Returns the number of attempts of each delivery in the failure log.
    ///
    /// # Panics
    /// When Postgres does not answer.
    pub async fn failed_attempts(&self) -> HashMap<String, usize> {
        let rows: Vec<(String, i64)> =
            sqlx::query_as("SELECT delivery_id::text, count(*) FROM webhook_failures GROUP BY 1")
                .fetch_all(&mut self.engines.postgres().await)
                .await
                .unwrap();
        rows.into_iter().map(|(delivery, count)| (delivery, count as usize)).collect()
    }

    /// Requests a short link as a browser from this address, and returns the answer without following it.
    ///
    /// # Errors
    /// When there is no answer, because the edge is down or died first.
    pub async fn click(&self, slug: &str, from: &str) -> reqwest::Result<Response> {
        self.client
            .get(format!("{}/{slug}", self.edge_url))
            .header("user-agent", BROWSER)
            .header("x-forwarded-for", from)
            .send()
            .await
    }

    /// Sends a HEAD request for a short link, which is not counted, and returns the status.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn head(&self, slug: &str) -> reqwest::Result<u16> {
        let request = self.client.head(format!("{}/{slug}", self.edge_url)).header("user-agent", BROWSER);
        Ok(request.send().await?.status().as_u16())
    }

    /// Waits until the edge redirects a link.
    ///
    /// # Panics
    /// As [`edge_knows`].
    pub async fn edge_knows(&self, slug: &str) {
        edge_knows(&self.edge_url, slug).await;
    }

    /// Registers a conversion and returns its status.
    ///
    /// # Panics
    /// When there is no answer.
    pub async fn convert(&self, click_id: &str) -> u16 {
        let body = json!({ "click_id": click_id });
        self.send(Method::POST, "/api/conversions", Some(&body)).await.0
    }
}

/// Waits until the edge at this URL redirects a link, with HEAD requests, which are not counted.
///
/// # Panics
/// When it does not learn the link in time.
pub async fn edge_knows(edge_url: &str, slug: &str) {
    let (client, url) = (http_client(), format!("{edge_url}/{slug}"));
    eventually("the edge knows the link", async || {
        match client.head(&url).header("user-agent", BROWSER).send().await {
            Ok(answer) if answer.status() == 302 => Ok(()),
            other => Err(other.map(|answer| answer.status())),
        }
    })
    .await;
}

/// Returns the click id in the destination of a redirect.
///
/// # Panics
/// When there is none.
pub fn click_id(redirect: &Response) -> String {
    let location = redirect.headers()["location"].to_str().unwrap();
    let url = reqwest::Url::parse(location).unwrap();
    url.query_pairs().find(|(name, _)| name == "click_id").unwrap().1.into_owned()
}

/// Describes a program that is ready when its `/readyz` answers with 200.
fn server(name: &str, url: &str, launch: Launch) -> Server {
    Server::new(name, url, launch, Probe::Http { url: format!("{url}/readyz") })
}

/// Returns the folder of this workspace's programs, built beside the running test.
///
/// # Panics
/// When they were not built.
pub fn programs() -> PathBuf {
    // From …/target/debug/deps/it-0123 or …/target/debug/soak to …/target/debug.
    let running = std::env::current_exe().unwrap();
    let found = running.ancestors().skip(1).take(2).find(|folder| folder.join("api").is_file());
    found
        .map(Path::to_owned)
        .unwrap_or_else(|| panic!("the programs are not built beside {}: run ./dev test", running.display()))
}

/// Returns the path of a program of this workspace.
///
/// # Panics
/// When it was not built.
pub fn binary(name: &str) -> PathBuf {
    programs().join(name)
}

fn environment(scratch: &Scratch, api: &str, edge: &str, operations: &[String; 4]) -> Vec<(String, String)> {
    let key = |byte: &str| byte.repeat(32);
    [
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
