//! The processor alone, as a process. It can be killed, frozen, stopped and started again.

use std::path::Path;
use std::process::Stdio;

use devstack::process::{Launch, Memory, Stopped, tail};
use devstack::scratch::Scratch;
use devstack::{Probe, Server};
use schemas::grants::User;
use tokio::process::Command;

use crate::PATIENCE;
use crate::deployment::binary;
use crate::engines::{Isolated, http_client};
use crate::faults::progress;
use crate::free_address;

/// Lines of the log that a failing test shows.
const LOG_LINES: usize = 30;

/// A `processor` process. Dropping it kills it.
#[derive(Debug)]
pub struct Processor {
    /// The process.
    pub server: Server,
    // Declared after the process, so that the folder is removed after the process has ended.
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
    /// Prepares a processor without starting it.
    ///
    /// # Panics
    /// When no port or no folder is available.
    pub fn prepare(engines: &Isolated) -> Self {
        Self::prepare_in(engines, Scratch::new("processor").unwrap(), Vec::new())
    }

    /// Prepares a processor whose clock is this many seconds ahead, without starting it.
    ///
    /// # Panics
    /// When there is no C compiler, which building this project requires.
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
        let operators = free_address().to_string();
        let mut launch = Launch::new(binary("processor"), folder.path().join("log"));
        launch.environment = engines.variables_of(User::Processor);
        launch.environment.extend(more.into_iter().map(|(name, value)| (name.to_owned(), value)));
        launch.environment.push(("HOPLINE_PROCESSOR_OPERATIONS_LISTEN".to_owned(), operators.clone()));
        let url = format!("http://{operators}");
        let server = Server::new("processor", &url, launch, Probe::Http { url: format!("{url}/healthz") });
        Self { server, folder }
    }

    /// Starts a processor, which then takes its partitions over.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(engines: &Isolated) -> Self {
        let processor = Self::prepare(engines);
        processor.server.start().await.unwrap();
        processor
    }

    /// Returns the sum of a metric over its labels; 0 when it does not exist yet.
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
        // `sum` of no values is -0.
        values.fold(0.0, |sum, value| sum + value)
    }

    /// Returns its resident memory in bytes.
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

/// Returns an operator's command on these engines, which is killed on drop.
pub fn command(engines: &Isolated, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("processor"));
    command.args(arguments).envs(engines.variables_of(User::Processor)).kill_on_drop(true);
    command
}

/// The observable steps of a replay or recount that rebuilds days.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A staging table exists.
    Begun,
    /// The staging table has rows.
    Staged,
    /// The rows of this many days will be replaced.
    Replacing(usize),
}

impl Step {
    /// The steps of a rebuild of two days, in order.
    pub const ALL: [Self; 4] = [Self::Begun, Self::Staged, Self::Replacing(1), Self::Replacing(2)];
}

/// Starts a replay or recount, and kills it soon after it reached a step.
///
/// # Panics
/// When it ends before, or does not reach the step.
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
    let found = tokio::time::timeout(PATIENCE, async {
        // Polls without a pause, so that the kill follows the step soon.
        while engines.clickhouse(&reached).await.trim() != "1" {
            let ended = running.try_wait().unwrap();
            assert!(ended.is_none(), "it ended with {ended:?} before {step:?}");
        }
    });
    found.await.unwrap_or_else(|_| panic!("no {step:?}"));
    running.kill().await.unwrap();
}

/// Runs `processor audit`, and asserts that everything is equal.
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
