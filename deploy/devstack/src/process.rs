//! Child processes that cannot outlive this one.

mod family;
mod memory;
mod program;
mod spawn;
mod tail;

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use family::{Member, kill_family, pause_family, pid_of, resume_family};
use nix::sys::signal::{Signal, kill};
use parking_lot::Mutex;
use program::await_end;
use spawn::spawn;
use tokio::sync::watch;

pub use self::family::{descendants, is_alive, is_paused};
pub use self::memory::Memory;
pub use self::program::{run, run_attached, run_with_input};
pub use self::spawn::detach;
pub use self::tail::tail;
use crate::readiness::until;
use crate::{Account, Error};

/// How long a killed process and its children may take to end; the kernel needs milliseconds.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// How long a process and its children may take to pause; one that waits for the disk pauses afterwards.
const PAUSE_DEADLINE: Duration = Duration::from_secs(10);

/// How to start a program, and how to stop it.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables in addition to the current environment.
    pub environment: Vec<(String, String)>,
    /// The account it runs as; `None` for the current one.
    pub account: Option<Account>,
    /// The file that its output is appended to.
    pub log: PathBuf,
    /// The signal that stops it.
    pub stop_signal: Signal,
    /// How long it may take to stop before it is killed.
    pub stop_deadline: Duration,
    /// The signal it gets when this process dies.
    pub orphan_signal: Signal,
}

impl Launch {
    /// Describes a program that SIGTERM stops within 30 s, and that is killed when this process dies.
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
        let open = || OpenOptions::new().create(true).append(true).mode(0o600).open(&self.log);
        let log =
            open().and_then(|log| Ok((log.try_clone()?, log))).map_err(Error::file("open", &self.log))?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.0)
            .stderr(log.1)
            // A terminal's Ctrl-C reaches only this process, which stops its children in order.
            .process_group(0);
        if let Some(account) = &self.account {
            command.uid(account.uid).gid(account.gid).current_dir("/");
        }
        Ok(command)
    }
}

/// How a process ended after a stop.
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
            if let Ok(status) = watched.lock().wait() {
                ended.send_replace(Some(status));
            }
        });
        Ok(Self { pid, launch, child, exit })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns its exit status, or `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Waits until it has ended.
    pub async fn ended(&self) -> Option<ExitStatus> {
        let mut exit = self.exit.clone();
        // Fails only when the thread that waits for the process got no status.
        exit.wait_for(Option::is_some).await.ok().and_then(|status| *status)
    }

    /// Sends a signal; returns whether the process was still running.
    pub fn signal(&self, signal: Signal) -> bool {
        let mut child = self.child.lock();
        // The lock keeps it from being reaped, so the id cannot belong to another process.
        matches!(child.try_wait(), Ok(None)) && kill(pid_of(self.pid), signal).is_ok()
    }

    /// Pauses it and all its descendants (SIGSTOP), and waits until all are; nothing changes when they were.
    ///
    /// # Errors
    /// [`Error::NotReady`] when one still runs after 10 s.
    pub async fn pause(&self) -> Result<(), Error> {
        let paused = || async {
            let mut child = self.child.lock();
            let has_ended = !matches!(child.try_wait(), Ok(None));
            // Again until none is found running: a child may have been started meanwhile.
            if has_ended || pause_family(self.pid) { Ok(()) } else { Err("it still runs".into()) }
        };
        until("a pause", PAUSE_DEADLINE, paused).await
    }

    /// Lets it and all its descendants continue (SIGCONT), also when they were not paused.
    pub fn resume(&self) {
        let mut child = self.child.lock();
        if matches!(child.try_wait(), Ok(None)) {
            resume_family(self.pid);
        }
    }

    /// Sends the stop signal, also to a paused process, and kills it after its deadline.
    pub async fn stop(&self) -> Stopped {
        self.signal(self.launch.stop_signal);
        self.resume();
        match tokio::time::timeout(self.launch.stop_deadline, self.ended()).await {
            Ok(Some(status)) => Stopped::Ended(status),
            _ => {
                self.kill().await;
                Stopped::Killed
            }
        }
    }

    /// Kills it and all its descendants (`kill -9`), and waits until all have ended.
    pub async fn kill(&self) {
        let family = self.kill_family();
        self.ended().await;
        // Only the kernel can delay this; a failure shows at the next start.
        let _ = until("the end of a killed process", KILL_DEADLINE, || async {
            if family.iter().any(Member::is_alive) { Err("a child is still running".into()) } else { Ok(()) }
        })
        .await;
    }

    fn kill_family(&self) -> Vec<Member> {
        let mut child = self.child.lock();
        if matches!(child.try_wait(), Ok(None)) { kill_family(self.pid) } else { Vec::new() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exit_status().is_some() {
            return;
        }
        let family = self.kill_family();
        let _ = self.child.lock().wait();
        let end = Instant::now() + KILL_DEADLINE;
        while family.iter().any(Member::is_alive) && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::scratch::Scratch;

    fn shell(script: &str, scratch: &Scratch) -> Launch {
        Launch::new("/bin/sh", scratch.path().join("log")).arguments(["-c", script])
    }

    async fn await_output(process: &Process, text: &str) {
        until(text, Duration::from_secs(10), || async {
            let log = tail(&process.launch.log, 10);
            if log.contains(text) { Ok(()) } else { Err(log.into()) }
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn the_exit_status_of_a_process_is_reported() {
        let scratch = Scratch::new("ends").unwrap();
        let process = Process::spawn(shell("echo last words; exit 7", &scratch)).unwrap();
        assert_eq!(process.ended().await.unwrap().code(), Some(7));
        assert_eq!(tail(&process.launch.log, 5), "last words");
        let mode = fs::metadata(&process.launch.log).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "a log may have keys");
        assert!(!process.signal(Signal::SIGTERM));
    }

    #[tokio::test]
    async fn a_process_that_ignores_the_stop_signal_is_killed() {
        let scratch = Scratch::new("ignores").unwrap();
        let mut launch = shell("trap '' TERM; echo up; while :; do sleep 1; done", &scratch);
        launch.stop_deadline = Duration::from_millis(50);
        let process = Process::spawn(launch).unwrap();
        await_output(&process, "up").await;
        assert_eq!(process.stop().await, Stopped::Killed);
        assert!(!is_alive(process.pid()));
    }

    #[tokio::test]
    async fn a_drop_also_kills_descendants_outside_the_group() {
        let scratch = Scratch::new("family").unwrap();
        let process =
            Process::spawn(shell("setsid sleep 600 & sleep 600 & echo up; wait", &scratch)).unwrap();
        await_output(&process, "up").await;
        let pid = process.pid();
        let children = until("both children", Duration::from_secs(10), || async {
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
    async fn a_paused_process_rests_with_its_descendants_until_it_is_resumed_or_stopped() {
        let scratch = Scratch::new("paused").unwrap();
        let script = "setsid sleep 600 & trap 'kill $!; exit 0' TERM; echo up; while :; do sleep 0.01; done";
        let process = Process::spawn(shell(script, &scratch)).unwrap();
        await_output(&process, "up").await;
        let all = |paused: bool| {
            let family = || descendants(process.pid()).into_iter().chain([process.pid()]);
            family().all(|pid| is_paused(pid) == paused)
        };
        process.pause().await.unwrap();
        process.pause().await.unwrap();
        assert!(all(true));
        process.resume();
        until("all run", Duration::from_secs(10), || async {
            if all(false) { Ok(()) } else { Err("one is paused".into()) }
        })
        .await
        .unwrap();
        process.pause().await.unwrap();
        let stopped = process.stop().await;
        assert!(matches!(stopped, Stopped::Ended(status) if status.success()), "{stopped:?}");
    }

    #[tokio::test]
    async fn a_failed_program_reports_its_output() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "cat; echo the reason >&2; exit 3"]);
        let error = run_with_input("a program", command, b"the input\n".to_vec()).await.unwrap_err();
        let Error::Failed { output, .. } = error else { panic!("{error}") };
        assert_eq!(output, "the input\nthe reason");
    }

    #[tokio::test]
    async fn an_abandoned_program_is_killed() {
        let scratch = Scratch::new("abandoned").unwrap();
        let file = scratch.path().join("pid");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("echo $$ > {}.new; mv {0}.new {0}; sleep 600", file.display()));
        let pid = until("the program's id", Duration::from_secs(10), || async {
            Ok(fs::read_to_string(&file)?.trim().parse::<u32>()?)
        });
        let pid = tokio::select! {
            pid = pid => pid.unwrap(),
            ended = run("a sleeper", command) => panic!("{ended:?}"),
        };
        assert!(!is_alive(pid));
    }
}
