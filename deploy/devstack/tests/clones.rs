//! Runs several clones through `./dev`, with prebuilt programs and separate engines.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use devstack::install::Cache;
use devstack::process::{Launch, Process, Stopped, run, tail};
use devstack::scratch::Scratch;
use devstack::{Account, http, readiness};
use serde_json::{Value, json};

/// How long a stack may take to start.
const START_DEADLINE: Duration = Duration::from_secs(400);

/// The prebuilt programs and downloaded engines that all clones share.
struct Kit {
    scratch: Scratch,
    engines: PathBuf,
    /// An account other than root, when the test runs as root.
    account: Option<Account>,
}

impl Kit {
    async fn new() -> Self {
        let scratch = Scratch::new("clones").unwrap();
        let account = Account::unprivileged().unwrap();
        let programs = scratch.path().join("programs");
        fs::create_dir(&programs).unwrap();
        let built = Path::new(env!("CARGO_BIN_EXE_devstack")).parent().unwrap();
        for name in ["devstack", "ingest", "processor", "api", "dispatcher"] {
            let from = built.join(name);
            let copied = fs::copy(&from, programs.join(name));
            copied.unwrap_or_else(|error| panic!("{}: {error}; run ./dev test", from.display()));
        }
        let engines = Self::engines(&scratch, account.as_ref()).await;
        Self { scratch, engines, account }
    }

    /// Returns the folder of downloaded engines, or a copy of it when the account cannot enter it.
    async fn engines(scratch: &Scratch, account: Option<&Account>) -> PathBuf {
        let cache = Cache::shared();
        let (kafka, data) = (cache.kafka().await.unwrap(), cache.data().await.unwrap());
        cache.clickhouse().await.unwrap();
        cache.postgres().await.unwrap();
        assert_eq!(kafka.ancestors().nth(2), data.ancestors().nth(2));
        let engines = kafka.ancestors().nth(2).unwrap().canonicalize().unwrap();
        let Some(account) = account.filter(|account| !account.reaches(&engines)) else { return engines };
        let copy = scratch.path().join("engines");
        let mut cp = Command::new("cp");
        cp.arg("-r").arg(&engines).arg(&copy);
        run("copying the engines", cp).await.unwrap();
        let mut chown = Command::new("chown");
        chown.args(["-R", &account.uid.to_string()]).arg(&copy);
        run("changing the owner of the copy", chown).await.unwrap();
        copy
    }

    fn clone(&self, name: &str, account: Option<&Account>) -> Clone<'_> {
        let folder = self.scratch.path().join(name);
        match account {
            Some(account) => account.create_folder(&folder).unwrap(),
            None => fs::create_dir(&folder).unwrap(),
        }
        fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev"), folder.join("dev")).unwrap();
        Clone { kit: self, folder, account: account.cloned() }
    }
}

struct Clone<'a> {
    kit: &'a Kit,
    folder: PathBuf,
    account: Option<Account>,
}

impl Clone<'_> {
    fn launch(&self) -> Launch {
        let log = self.kit.scratch.path().join(format!("{}.log", self.folder.file_name().unwrap().display()));
        let mut launch = Launch::new(self.folder.join("dev"), log);
        launch.environment = self.environment();
        launch.account.clone_from(&self.account);
        launch
    }

    fn environment(&self) -> Vec<(String, String)> {
        let path = |path: &Path| path.display().to_string();
        // Without the engines and settings of the test run.
        let mut variables = [
            ("DEVSTACK_PROGRAMS", path(&self.kit.scratch.path().join("programs"))),
            ("DEVSTACK_ENGINES", path(&self.kit.engines)),
            ("HOME", path(&self.folder)),
            ("DEVSTACK_BIN", path(&self.kit.scratch.path().join("programs/devstack"))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        let external = ["KAFKA_BROKERS", "CLICKHOUSE_URL", "DATABASE_URL"];
        variables.extend(external.map(|name| (name.to_owned(), String::new())));
        variables
    }

    /// Starts the stack, which is killed at the end of the test.
    fn up(&self) -> Process {
        Process::spawn(self.launch().arguments(["up"])).unwrap()
    }

    /// Runs a command and returns its output.
    async fn dev(&self, arguments: &[&str]) -> Result<String, devstack::Error> {
        let mut dev = Command::new(self.folder.join("dev"));
        dev.args(arguments).envs(self.environment());
        if let Some(account) = &self.account {
            dev.uid(account.uid).gid(account.gid);
        }
        let printed = run(&format!("./dev {}", arguments.join(" ")), dev).await?;
        Ok(String::from_utf8(printed).unwrap())
    }

    async fn status(&self) -> Value {
        serde_json::from_str(&self.dev(&["status", "--json"]).await.unwrap()).unwrap()
    }

    /// Waits until the stack is ready.
    async fn ready(&self, up: &Process) -> Value {
        let status = readiness::until("the stack", START_DEADLINE, async || {
            let status = self.status().await;
            let is_up = up.exit_status().is_none();
            assert!(is_up, "the stack ended:\n{}", tail(&self.launch().log, 60));
            if status["ready"] == true { Ok(status) } else { Err(status.to_string().into()) }
        });
        status.await.unwrap_or_else(|error| panic!("{error}:\n{}", tail(&self.launch().log, 60)))
    }

    async fn down(&self, up: &Process) {
        self.dev(&["down"]).await.unwrap();
        assert_eq!(up.ended().await.unwrap().code(), Some(0), "{}", tail(&self.launch().log, 60));
    }
}

/// Requests the links of a stack's API, and returns the status and the body.
async fn links(stack: &Value, key: &Value) -> (u16, Value) {
    let url = format!("{}/api/links", stack["api"].as_str().unwrap());
    let request = http::client().unwrap().get(url).bearer_auth(key.as_str().unwrap());
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn create_link(stack: &Value) -> Value {
    let url = format!("{}/api/links", stack["api"].as_str().unwrap());
    let request = http::client().unwrap().post(url).bearer_auth(stack["api_key"].as_str().unwrap());
    let link = json!({ "name": "Kept", "destination": "https://example.com/", "slug": "kept" });
    let answer = request.json(&link).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    answer.json().await.unwrap()
}

#[tokio::test]
async fn clones_run_side_by_side_and_a_moved_one_keeps_its_data() {
    let kit = Kit::new().await;
    let (first, second) = (kit.clone("first", None), kit.clone("second", kit.account.as_ref()));
    let (up_first, up_second) = (first.up(), second.up());
    let (status, other) = tokio::join!(first.ready(&up_first), second.ready(&up_second));
    for name in ["api", "edge", "kafka", "clickhouse", "postgres", "api_key", "dashboard", "setup_token"] {
        assert!(status[name].is_string(), "{name}: {status}");
        assert_ne!(status[name], other[name], "{name}");
    }
    for clone in [&first, &second] {
        assert!(clone.folder.join(".dev/data/spool").is_dir());
    }
    assert_eq!(links(&other, &status["api_key"]).await.0, 401);
    create_link(&status).await;

    // Stopping one clone does not stop the other.
    second.down(&up_second).await;
    assert_eq!(second.status().await["ready"], false);
    first.ready(&up_first).await;
    second.dev(&["reset"]).await.unwrap();
    assert!(!second.folder.join(".dev/data").exists());

    first.down(&up_first).await;
    let moved = Clone { folder: kit.scratch.path().join("moved"), ..first };
    fs::rename(kit.scratch.path().join("first"), &moved.folder).unwrap();
    let up = moved.up();
    let found = moved.ready(&up).await;
    assert_eq!(found["api_key"], status["api_key"]);
    let (code, answer) = links(&found, &found["api_key"]).await;
    assert_eq!(code, 200);
    assert_eq!(answer["links"][0]["slug"], "kept", "{answer}");
    let printed = moved.dev(&["demo"]).await.unwrap();
    assert!(printed.starts_with("Created 12 links with "), "{printed}");
    let printed = moved.dev(&["demo"]).await.unwrap();
    assert!(printed.starts_with("The demo data is already there"), "{printed}");

    // A running stack is visible only in its own folder.
    let copy = kit.clone("copy", None);
    assert_eq!(copy.status().await["ready"], false);
    copy.dev(&["down"]).await.unwrap();
    assert_eq!(moved.status().await["ready"], true);
    let stopped = up.stop().await;
    assert!(matches!(stopped, Stopped::Ended(status) if status.success()), "{stopped:?}");
}
