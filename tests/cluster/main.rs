//! A cluster of `./dev up --cluster` whose servers fail one after another. A separate program, which runs alone
//! (`.config/nextest.toml`): its 18 servers leave other tests too little of a small machine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use devstack::process::{Launch, Process, run, tail};
use devstack::scratch::Scratch;
use reqwest::Client;
use serde_json::{Value, json};
use tests::deployment::{BROWSER, edge_knows, programs};
use tests::engines::http_client;
use tests::faults::progress;
use tests::{ANSWER, eventually, eventually_within};
use tokio::time::sleep;

use crate::access::{services_use_their_own_users, strangers_are_rejected};

/// How long a cluster may take to be ready.
const READY: Duration = Duration::from_secs(400);

/// The commands that take a server away and bring it back.
const AWAY: [[&str; 3]; 12] = [
    ["kill", "ingest-1", "start"],
    ["pause", "ingest-2", "resume"],
    ["stop", "processor-1", "start"],
    ["kill", "api-2", "start"],
    ["pause", "dispatcher-1", "resume"],
    ["kill", "kafka-1", "start"],
    ["pause", "kafka-2", "resume"],
    ["kill", "clickhouse-1-1", "start"],
    ["pause", "clickhouse-1-2", "resume"],
    ["kill", "clickhouse-2-1", "start"],
    ["pause", "postgres-2", "resume"],
    ["kill", "postgres-2", "start"],
];

/// A clone with a running cluster.
struct Cluster {
    folder: PathBuf,
    up: Process,
    log: PathBuf,
    // Removed after the processes that write to it have ended.
    _scratch: Scratch,
}

impl Cluster {
    fn start() -> Self {
        let scratch = Scratch::new("cluster").unwrap();
        let (folder, log) = (scratch.path().join("clone"), scratch.path().join("log"));
        fs::create_dir(&folder).unwrap();
        fs::copy(repository().join("dev"), folder.join("dev")).unwrap();
        let mut launch = Launch::new(folder.join("dev"), &log).arguments(["up", "--cluster"]);
        launch.environment = environment();
        Self { up: Process::spawn(launch).unwrap(), folder, log, _scratch: scratch }
    }

    async fn dev(&self, arguments: &[&str]) -> String {
        let mut dev = Command::new(self.folder.join("dev"));
        dev.args(arguments).envs(environment());
        let what = format!("./dev {}", arguments.join(" "));
        let printed = run(&what, dev).await;
        let printed = printed.unwrap_or_else(|error| panic!("{error}\n{}", tail(&self.log, 60)));
        progress(&what);
        String::from_utf8(printed).unwrap()
    }

    /// Empties the disk of a stopped broker, as if a new one replaced it.
    fn loses_data(&self, broker: &str) {
        let data = self.folder.join(".dev/cluster/data").join(broker).join("data");
        for file in fs::read_dir(data).unwrap() {
            let file = file.unwrap();
            if file.file_type().unwrap().is_dir() {
                fs::remove_dir_all(file.path()).unwrap();
            // An operator gives a new broker its id and its cluster's.
            } else if file.file_name() != "meta.properties" {
                fs::remove_file(file.path()).unwrap();
            }
        }
    }

    async fn status(&self) -> Value {
        serde_json::from_str(&self.dev(&["status", "--json"]).await).unwrap()
    }

    /// Waits until every server is ready.
    async fn is_ready(&self) -> Value {
        eventually_within("the cluster is ready", READY, async || {
            let log = || tail(&self.log, 60);
            assert!(self.up.exit_status().is_none(), "the cluster ended:\n{}", log());
            let status = self.status().await;
            if status["ready"] == true { Ok(status) } else { Err(log()) }
        })
        .await
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Returns the variables of `./dev`: without the engines and settings of the test run.
fn environment() -> Vec<(String, String)> {
    let path = |path: PathBuf| path.display().to_string();
    let mut variables =
        vec![("DEVSTACK_PROGRAMS", path(programs())), ("DEVSTACK_BIN", path(programs().join("devstack")))];
    if std::env::var_os("DEVSTACK_ENGINES").is_none() {
        variables.push(("DEVSTACK_ENGINES", path(repository().join(".dev/engines"))));
    }
    let external = ["KAFKA_BROKERS", "CLICKHOUSE_URL", "DATABASE_URL"];
    variables.extend(external.map(|name| (name, String::new())));
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A visitor of a link, and its owner.
struct Visitor {
    client: Client,
    apis: [String; 2],
    edges: [String; 2],
    key: String,
    id: String,
    answered: Cell<u64>,
    /// Clicks that may or may not be counted.
    unanswered: Cell<u64>,
}

impl Visitor {
    async fn new(status: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut visitor = Self {
            client: http_client(),
            apis: [0, 1].map(|index| text(&status["apis"][index])),
            edges: [0, 1].map(|index| text(&status["edges"][index])),
            key: text(&status["api_key"]),
            id: String::new(),
            answered: Cell::new(0),
            unanswered: Cell::new(0),
        };
        visitor.id = visitor.creates(&visitor.apis[0], "visited").await;
        for edge in &visitor.edges {
            edge_knows(edge, "visited").await;
        }
        visitor
    }

    /// Waits until an API creates a link, and returns its id.
    async fn creates(&self, api: &str, slug: &str) -> String {
        let body = json!({ "name": slug, "slug": slug, "destination": "https://example.com/" });
        eventually("a link is created", async || {
            let request = self.client.post(format!("{api}/api/links")).bearer_auth(&self.key).json(&body);
            let answer = request.timeout(ANSWER).send().await.map_err(|error| error.to_string())?;
            let status = answer.status();
            let link: Value = answer.json().await.map_err(|error| error.to_string())?;
            // A request without an answer may have created it.
            let taken = status == 409;
            if status == 201 || taken {
                Ok(link["id"].as_str().unwrap_or_default().to_owned())
            } else {
                Err(link.to_string())
            }
        })
        .await
    }

    /// Clicks at an edge without a pause.
    async fn click(&self, edge: &str) -> ! {
        loop {
            let number = self.answered.get() + self.unanswered.get();
            let request = self.client.get(format!("{edge}/visited")).header("user-agent", BROWSER);
            let request = request.header("x-forwarded-for", format!("198.51.100.{}", number % 250));
            match request.timeout(ANSWER).send().await {
                Ok(answer) if answer.status() == 302 => self.answered.set(self.answered.get() + 1),
                _ => self.unanswered.set(self.unanswered.get() + 1),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until more clicks are answered.
    async fn is_answered(&self) {
        let before = self.answered.get();
        eventually("clicks are answered", async || {
            if self.answered.get() >= before + 20 { Ok(()) } else { Err(self.answered.get() - before) }
        })
        .await;
    }

    /// Waits until every answered click is counted, and returns the count.
    async fn counts_all(&self) -> u64 {
        eventually("every click is counted", async || {
            let request = self.client.get(format!("{}/api/links/{}", self.apis[0], self.id));
            let answer = request.bearer_auth(&self.key).send().await.map_err(|error| error.to_string())?;
            let link: Value = answer.json().await.map_err(|error| error.to_string())?;
            let total = link["total_clicks"].as_u64();
            total.filter(|total| *total >= self.answered.get()).ok_or_else(|| link.to_string())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_redirects_and_counts_while_its_servers_fail() {
    let cluster = Cluster::start();
    let status = cluster.is_ready().await;
    names_every_server(&status);
    strangers_are_rejected(&status).await;
    let visitor = Visitor::new(&status).await;
    services_use_their_own_users(&status).await;
    tokio::select! {
        never = visitor.click(&visitor.edges[0]) => never,
        never = visitor.click(&visitor.edges[1]) => never,
        () = servers_are_away(&cluster, &visitor) => {}
    }
    cluster.is_ready().await;
    let (counted, answered) = (visitor.counts_all().await, visitor.answered.get());
    let possible = answered + visitor.unanswered.get();
    assert!(counted <= possible, "{counted} clicks are counted, and {possible} were sent");
    let audit = cluster.dev(&["audit"]).await;
    assert!(audit.starts_with("equal\n"), "{audit}");
    progress(&format!("{answered} of {possible} clicks were answered, {counted} are counted"));
    cluster.dev(&["down"]).await;
    let ended = cluster.up.ended().await;
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", tail(&cluster.log, 60));
}

/// Checks the parts of a status that a single stack lacks.
fn names_every_server(status: &Value) {
    let servers = status["services"].as_array().unwrap();
    let names: Vec<&str> = servers.iter().map(|server| server["name"].as_str().unwrap()).collect();
    for name in
        ["ingest-2", "processor-2", "api-2", "dispatcher-2", "kafka-3", "clickhouse-2-2", "zookeeper-1"]
    {
        assert!(names.contains(&name), "{names:?}");
    }
    assert_eq!((role(status, "postgres-1"), role(status, "postgres-2")), ("primary", "standby"));
    assert_eq!(status["kafka"].as_str().unwrap().split(',').count(), 3, "{status}");
    assert_eq!(status["kafka_client"]["bootstrap.servers"], status["kafka"]);
    assert_eq!(status["kafka_client"]["ssl.ca.location"], status["ca_file"]);
    assert!(status["postgres"].as_str().unwrap().ends_with("&target_session_attrs=read-write"), "{status}");
    assert_eq!((&status["edges"][0], &status["apis"][0]), (&status["edge"], &status["api"]));
}

fn role<'a>(status: &'a Value, name: &str) -> &'a str {
    let servers = status["services"].as_array().unwrap();
    servers.iter().find(|server| server["name"] == name).unwrap()["role"].as_str().unwrap()
}

async fn servers_are_away(cluster: &Cluster, visitor: &Visitor) {
    for [leave, name, back] in AWAY {
        cluster.dev(&[leave, name]).await;
        assert_eq!(cluster.status().await["ready"], false, "{leave} {name}");
        visitor.is_answered().await;
        visitor.creates(&visitor.apis[0], &format!("during-{leave}-{name}")).await;
        cluster.dev(&[back, name]).await;
    }
    cluster.dev(&["kill", "kafka-3"]).await;
    cluster.loses_data("kafka-3");
    cluster.dev(&["start", "kafka-3"]).await;
    // The new broker must have the records that were on the lost one and on this one.
    cluster.dev(&["kill", "kafka-1"]).await;
    visitor.is_answered().await;
    visitor.creates(&visitor.apis[0], "after-kafka-3-was-lost").await;
    cluster.dev(&["start", "kafka-1"]).await;
    // A killed primary, a frozen one, and a running one.
    let [first, second] = ["postgres-1", "postgres-2"];
    for [leave, gone, promoted] in
        [["kill", first, second], ["pause", second, first], ["start", first, second]]
    {
        cluster.dev(&[leave, gone]).await;
        visitor.is_answered().await;
        cluster.dev(&["promote", promoted]).await;
        for (number, api) in visitor.apis.iter().enumerate() {
            visitor.creates(api, &format!("after-{leave}-{gone}-{number}")).await;
        }
        visitor.is_answered().await;
        cluster.dev(&["start", gone]).await;
        let status = cluster.status().await;
        assert_eq!((role(&status, promoted), role(&status, gone)), ("primary", "standby"));
    }
    // All servers of a service or an engine at once.
    for name in ["dispatcher", "kafka"] {
        cluster.dev(&["restart", name]).await;
    }
    visitor.is_answered().await;
}
