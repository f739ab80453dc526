//! The processor alone, as a process. It can be killed, frozen, stopped and started again.

use std::path::Path;
use std::process::Stdio;

use devstack::process::{Launch, Memory};
use devstack::scratch::Scratch;
use devstack::{Probe, Server};
use schemas::grants::User;
use tokio::process::{Child, Command};

use crate::deployment::binary;
use crate::engines::Isolated;
use crate::faults::progress;
use crate::free_address;
use crate::proxy::{Fate, Moment, Proxy};
use crate::signals::{freeze, log_tail, stop, wake};

/// A `processor` process. Dropping it kills it.
#[derive(Debug)]
pub struct Processor {
    /// The process.
    pub server: Server,
    // Declared after the process, so that the folder is removed after the process has ended.
    _folder: Scratch,
}

impl Drop for Processor {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (url, log) = (self.server.url(), log_tail(&self.server));
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
        Self { server, _folder: folder }
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
        stop(&self.server).await;
    }
}

/// Returns an operator's command on these engines, which is killed on drop.
pub fn command(engines: &Isolated, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("processor"));
    command.args(arguments).envs(engines.variables_of(User::Processor)).kill_on_drop(true);
    command
}

/// Steps of a replay or recount that rebuilds two days or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is a staging table.
    Begun,
    /// The staging table has the rows of the first day.
    Staged,
    /// The rows of the first day will be replaced.
    Replacing,
    /// The rows of the first day are replaced, and its slice is not closed again.
    Replaced,
    /// The first day is done, and the rows of the second one will be replaced.
    ReplacingSecond,
}

impl Step {
    /// The statements at which it is held, one after the other; the last one is the step's.
    fn statements(self) -> &'static [(&'static [u8], Moment)] {
        const NOTE: &[u8] = b"INSERT INTO rebuilds";
        match self {
            Self::Begun => &[(b"CREATE TABLE clicks_staging_", Moment::Answered)],
            Self::Staged => &[(NOTE, Moment::Before)],
            Self::Replacing => &[(NOTE, Moment::Answered)],
            Self::Replaced => &[(b"ALTER TABLE clicks REPLACE PARTITION", Moment::Answered)],
            Self::ReplacingSecond => &[(NOTE, Moment::Answered), (NOTE, Moment::Answered)],
        }
    }
}

/// Starts a replay or recount, and kills it at a step. In a cluster, it sees only the first replica's statements.
///
/// # Panics
/// When it does not reach the step.
pub async fn kill_at(engines: &Isolated, step: Step, mut command: Command) {
    let proxy = Proxy::start(engines).await;
    command.env("CLICKHOUSE_URL", proxy.before(engines).clickhouse_url_of(User::Processor));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut running: Option<Child> = None;
    for &(statement, moment) in step.statements() {
        // Frozen, so that the next statement is not sent before it is waited for.
        running.iter().for_each(freeze);
        proxy.release(Fate::GoesOn);
        proxy.set(statement, moment);
        running.iter().for_each(wake);
        let running = running.get_or_insert_with(|| command.spawn().unwrap());
        tokio::select! {
            () = proxy.holds() => {}
            ended = running.wait() => panic!("the command ended before {step:?}: {}", ended.unwrap()),
        }
    }
    running.expect("each step has a statement").kill().await.unwrap();
    proxy.release(Fate::IsCut);
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
