//! Child processes that cannot outlive us.

mod family;
mod memory;
mod program;
mod spawn;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use family::{Member, kill_family, pid_of};
use nix::sys::signal::{Signal, kill};
use program::await_end;
use spawn::spawn;
use tokio::sync::watch;

pub use self::family::{descendants, is_alive};
pub use self::memory::Memory;
pub use self::program::{run, run_attached, run_with_input};
pub use self::spawn::detach;
use crate::{Account, Error};

/// How long a killed process and its children may take to vanish; the kernel needs milliseconds.
const VANISH: Duration = Duration::from_secs(5);

/// How to start a program, and how to stop it.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables on top of our own environment.
    pub environment: Vec<(String, String)>,
    /// The account it runs as; `None` for ours.
    pub account: Option<Account>,
    /// The file that what it prints is appended to.
    pub log: PathBuf,
    /// The signal that asks it to stop.
    pub stop_signal: Signal,
    /// How long it may take to stop before it is killed.
    pub stop_deadline: Duration,
    /// The signal it gets when we die.
    pub orphan_signal: Signal,
}

impl Launch {
    /// A program that SIGTERM stops within 30 s, and that is killed when we die.
    pub fn new(program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            account: None,
            log: log.into(),
            stop_signal: Signal::SIGTERM,
            stop_deadline: Duration::from_secs(30),
            orphan_signal: Signal::SIGKILL,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    fn command(&self) -> Result<Command, Error> {
        if let Some(folder) = self.log.parent() {
            fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
        }
        let open = || OpenOptions::new().create(true).append(true).open(&self.log);
        let log =
            open().and_then(|log| Ok((log.try_clone()?, log))).map_err(Error::file("open", &self.log))?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.0)
            .stderr(log.1)
            // A terminal's Ctrl-C reaches us alone: the order in which things stop is ours.
            .process_group(0);
        if let Some(account) = &self.account {
            command.uid(account.uid).gid(account.gid).current_dir("/");
        }
        Ok(command)
    }
}

/// How a process came to its end when asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It ended by itself within its deadline.
    Ended(ExitStatus),
    /// It had to be killed.
    Killed,
}

/// A running child process; killed with all its children on drop.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    launch: Launch,
    child: Arc<Mutex<Child>>,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts the program in a separate process group.
    ///
    /// # Errors
    /// [`Error::File`] when its log cannot be opened, [`Error::Spawn`] when it cannot be run.
    pub fn spawn(launch: Launch) -> Result<Self, Error> {
        let child = spawn(launch.command()?, launch.orphan_signal)
            .map_err(|source| Error::Spawn { program: launch.program.clone(), source })?;
        let pid = child.id();
        let child = Arc::new(Mutex::new(child));
        let (ended, exit) = watch::channel(None);
        let watched = Arc::clone(&child);
        thread::spawn(move || {
            await_end(pid);
            if let Ok(status) = lock(&watched).wait() {
                ended.send_replace(Some(status));
            }
        });
        Ok(Self { pid, launch, child, exit })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, or `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// A channel that holds the exit status once there is one.
    pub fn exit(&self) -> watch::Receiver<Option<ExitStatus>> {
        self.exit.clone()
    }

    /// Waits until it has ended.
    pub async fn ended(&self) -> Option<ExitStatus> {
        let mut exit = self.exit.clone();
        // Fails only if the watching thread ended without a status.
        exit.wait_for(Option::is_some).await.ok().and_then(|status| *status)
    }

    /// Sends a signal; says whether there was still a process to get it.
    pub fn signal(&self, signal: Signal) -> bool {
        let mut child = lock(&self.child);
        // Under the lock nobody else reaps it, so the id cannot belong to a stranger.
        matches!(child.try_wait(), Ok(None)) && kill(pid_of(self.pid), signal).is_ok()
    }

    /// Asks it to stop, and kills it when its deadline has passed.
    pub async fn stop(&self) -> Stopped {
        self.signal(self.launch.stop_signal);
        match tokio::time::timeout(self.launch.stop_deadline, self.ended()).await {
            Ok(Some(status)) => Stopped::Ended(status),
            _ => {
                self.kill().await;
                Stopped::Killed
            }
        }
    }

    /// Kills it and every process under it at once (`kill -9`), and waits until all are gone.
    pub async fn kill(&self) {
        let family = self.kill_family();
        self.ended().await;
        // Only the kernel can delay this, and a failure is seen at the next start.
        let _ = crate::readiness::until("the end of a killed process", VANISH, || async {
            if family.iter().any(Member::lives) { Err("a child of it is still there".into()) } else { Ok(()) }
        })
        .await;
    }

    fn kill_family(&self) -> Vec<Member> {
        let mut child = lock(&self.child);
        if matches!(child.try_wait(), Ok(None)) { kill_family(self.pid) } else { Vec::new() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exit_status().is_some() {
            return;
        }
        let family = self.kill_family();
        let _ = lock(&self.child).wait();
        let end = std::time::Instant::now() + VANISH;
        while family.iter().any(Member::lives) && std::time::Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last lines of a log, for an error message.
pub fn tail(log: &Path, lines: usize) -> String {
    // Enough for any 40 lines worth showing, however long the log.
    const WINDOW: u64 = 64 * 1024;
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(WINDOW)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map_or_else(|error| format!("(no log: {error})"), |text| last_lines(&text, lines))
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn shell(script: &str, scratch: &Scratch) -> Launch {
        Launch::new("/bin/sh", scratch.path().join("log")).arguments(["-c", script])
    }

    async fn printed(process: &Process, text: &str) {
        crate::readiness::until(text, Duration::from_secs(10), || async {
            let log = tail(&process.launch.log, 10);
            if log.contains(text) { Ok(()) } else { Err(log.into()) }
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn a_process_that_ends_is_noticed_with_its_status() {
        let scratch = Scratch::new("ends").unwrap();
        let process = Process::spawn(shell("echo last words; exit 7", &scratch)).unwrap();
        assert_eq!(process.ended().await.unwrap().code(), Some(7));
        assert_eq!(tail(&process.launch.log, 5), "last words");
        assert!(!process.signal(Signal::SIGTERM));
    }

    #[tokio::test]
    async fn a_process_that_ignores_the_stop_signal_is_killed() {
        let scratch = Scratch::new("deaf").unwrap();
        let mut launch = shell("trap '' TERM; echo up; while :; do sleep 1; done", &scratch);
        launch.stop_deadline = Duration::from_millis(50);
        let process = Process::spawn(launch).unwrap();
        printed(&process, "up").await;
        assert_eq!(process.stop().await, Stopped::Killed);
        assert!(!is_alive(process.pid()));
    }

    #[tokio::test]
    async fn a_drop_leaves_no_descendant_even_outside_the_group() {
        let scratch = Scratch::new("family").unwrap();
        let process =
            Process::spawn(shell("setsid sleep 600 & sleep 600 & echo up; wait", &scratch)).unwrap();
        printed(&process, "up").await;
        let pid = process.pid();
        let children = crate::readiness::until("both children", Duration::from_secs(10), || async {
            let found = descendants(pid);
            if found.len() == 2 { Ok(found) } else { Err(format!("{found:?}").into()) }
        })
        .await
        .unwrap();
        drop(process);
        assert!(!is_alive(pid));
        assert!(children.into_iter().all(|child| !is_alive(child)));
    }

    #[tokio::test]
    async fn a_preparing_program_that_fails_says_why() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "cat; echo the reason >&2; exit 3"]);
        let error = run_with_input("a preparation", command, b"the input\n".to_vec()).await.unwrap_err();
        let Error::Failed { output, .. } = error else { panic!("{error}") };
        assert_eq!(output, "the input\nthe reason");
    }

    #[tokio::test]
    async fn an_abandoned_preparation_is_killed() {
        let scratch = Scratch::new("abandoned").unwrap();
        let file = scratch.path().join("pid");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("echo $$ > {}.new; mv {0}.new {0}; sleep 600", file.display()));
        let pid = crate::readiness::until("the program's id", Duration::from_secs(10), || async {
            Ok(fs::read_to_string(&file)?.trim().parse::<u32>()?)
        });
        let pid = tokio::select! {
            pid = pid => pid.unwrap(),
            ended = run("a sleeper", command) => panic!("{ended:?}"),
        };
        assert!(!is_alive(pid));
    }
}
