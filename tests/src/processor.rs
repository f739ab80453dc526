//! The processor alone, as a process: it can be killed, stopped and started again, and held for a while.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use devstack::process::{Launch, Memory, Stopped, tail};
use devstack::scratch::Scratch;
use devstack::{Probe, Server, ports};
use tokio::process::Command;

use crate::deployment::binary;
use crate::engines::{Isolated, http_client};
use crate::faults::progress;

/// How many lines of a log a failing test shows.
const LOG_LINES: usize = 30;

/// How long a replay may take to get to a step.
const STEP: Duration = Duration::from_secs(90);

/// What an operator's environment says to a processor on these engines.
fn environment(engines: &Isolated) -> Vec<(String, String)> {
    [
        ("KAFKA_BROKERS", &engines.kafka_brokers),
        ("CLICKHOUSE_URL", &engines.clickhouse_url),
        ("HOPLINE_TOPIC_PREFIX", &engines.topic_prefix),
    ]
    .map(|(name, value)| (name.to_owned(), value.clone()))
    .to_vec()
}

/// A `processor` process. Killed on drop.
#[derive(Debug)]
pub struct Processor {
    /// The process; ready when every check is.
    pub server: Server,
    // Declared after the process: the folder goes when nothing writes there any more.
    folder: Scratch,
}

impl Drop for Processor {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (url, log) = (self.server.url(), tail(&self.folder.path().join("log"), LOG_LINES));
            progress(&format!("the last lines of the processor at {url}:\n{log}"));
        }
    }
}

impl Processor {
    /// Sets a processor up, and starts nothing.
    ///
    /// # Panics
    /// When no port or no folder can be had.
    pub fn prepare(engines: &Isolated) -> Self {
        Self::prepare_in(engines, Scratch::new("processor").unwrap(), Vec::new())
    }

    /// Sets a processor up whose clock is so many seconds ahead of everybody else's, and starts nothing.
    ///
    /// # Panics
    /// When there is no C compiler, which building this project takes.
    pub fn prepare_ahead(engines: &Isolated, seconds: u64) -> Self {
        let folder = Scratch::new("processor").unwrap();
        let library = folder.path().join("ahead.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ahead.c");
        let compile = ["-shared", "-fPIC", "-o"].map(Path::new);
        let compiled = std::process::Command::new("cc").args(compile).args([&library, &source]).status();
        assert!(compiled.unwrap().success());
        let preloaded = library.to_str().unwrap().to_owned();
        let more = vec![("LD_PRELOAD", preloaded), ("SECONDS_AHEAD", seconds.to_string())];
        Self::prepare_in(engines, folder, more)
    }

    fn prepare_in(engines: &Isolated, folder: Scratch, more: Vec<(&str, String)>) -> Self {
        let operators = format!("127.0.0.1:{}", ports::free().unwrap());
        let mut launch = Launch::new(binary("processor"), folder.path().join("log"));
        launch.environment = environment(engines);
        launch.environment.extend(more.into_iter().map(|(name, value)| (name.to_owned(), value)));
        launch.environment.push(("HOPLINE_PROCESSOR_OPERATIONS_LISTEN".to_owned(), operators.clone()));
        let url = format!("http://{operators}");
        let server = Server::new("processor", &url, launch, Probe::Http { url: format!("{url}/healthz") });
        Self { server, folder }
    }

    /// Starts a processor, which then takes its partitions.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(engines: &Isolated) -> Self {
        let processor = Self::prepare(engines);
        processor.server.start().await.unwrap();
        processor
    }

    /// The sum of a metric over its labels; 0 when it was never counted.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn metric(&self, name: &str) -> f64 {
        let answer = http_client().get(format!("{}/metrics", self.server.url())).send().await.unwrap();
        let page = answer.text().await.unwrap();
        let lines = page.lines().filter_map(|line| line.strip_prefix(name));
        let values = lines.filter_map(|rest| match rest.as_bytes().first() {
            Some(b' ' | b'{') => rest.rsplit_once(' ')?.1.parse::<f64>().ok(),
            _ => None,
        });
        // `sum` of none is -0.
        values.fold(0.0, |sum, value| sum + value)
    }

    /// The memory that it has, in bytes.
    ///
    /// # Panics
    /// When it does not run.
    pub fn memory(&self) -> u64 {
        Memory::of(self.server.pid().unwrap()).unwrap().resident
    }

    /// Stops it with SIGTERM.
    ///
    /// # Panics
    /// When it does not end by itself with 0.
    pub async fn stop(&self) {
        match self.server.stop().await {
            Some(Stopped::Ended(status)) if status.success() => {}
            other => panic!(
                "the processor did not end in good order: {other:?}\n{}",
                tail(&self.folder.path().join("log"), LOG_LINES)
            ),
        }
    }
}

/// An operator's command on these engines. It is killed on drop.
pub fn command(engines: &Isolated, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("processor"));
    command.args(arguments).envs(environment(engines)).kill_on_drop(true);
    command
}

/// What can be seen of a replay or recount that makes days again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A staging table is there.
    Begun,
    /// It has rows.
    Staged,
    /// The rows of so many days are about to be replaced.
    Replacing(usize),
}

impl Step {
    /// The steps of a rebuild of two days, in their order.
    pub const ALL: [Self; 4] = [Self::Begun, Self::Staged, Self::Replacing(1), Self::Replacing(2)];
}

/// Starts a replay or recount, and kills it soon after it has got to a step.
///
/// # Panics
/// When it ends before, or does not get there.
pub async fn kill_at(engines: &Isolated, step: Step, mut command: Command) {
    let tables = "database = currentDatabase() AND startsWith(name, 'clicks_staging_')";
    let before = engines.clickhouse("SELECT count() FROM rebuilds").await.trim().parse::<usize>().unwrap();
    let left = format!("SELECT groupArray(name) FROM system.tables WHERE {tables}");
    let left = engines.clickhouse(&left).await;
    let own = format!("{tables} AND NOT has({}, name)", left.trim());
    let reached = match step {
        Step::Begun => format!("SELECT count() > 0 FROM system.tables WHERE {own}"),
        Step::Staged => format!("SELECT sum(total_rows) > 0 FROM system.tables WHERE {own}"),
        Step::Replacing(days) => format!("SELECT count() >= {} FROM rebuilds", before + days),
    };
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let found = tokio::time::timeout(STEP, async {
        // Nothing waits between two looks, so that the kill comes soon after the step.
        while engines.clickhouse(&reached).await.trim() != "1" {
            let ended = running.try_wait().unwrap();
            assert!(ended.is_none(), "it ended with {ended:?} before {step:?}");
        }
    });
    found.await.unwrap_or_else(|_| panic!("no {step:?}"));
    running.kill().await.unwrap();
}

/// Runs `processor audit`, and holds that it finds everything equal.
///
/// # Panics
/// When it finds a difference.
pub async fn audit(engines: &Isolated) {
    let output = command(engines, &["audit"]).output().await.unwrap();
    assert!(
        output.status.success(),
        "processor audit: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
