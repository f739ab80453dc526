//! A server: a process, and the check that it is ready.

use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::process::{Launch, Process, Stopped, tail};
use crate::readiness::until;
use crate::scratch::Scratch;
use crate::{Cause, Error, clickhouse, kafka, postgres};

/// How many lines of a server's log an error shows.
const TAIL: usize = 25;

/// How long one look at a server may take.
const LOOK: Duration = Duration::from_secs(2);

/// The check that a server is ready, in its own protocol.
#[derive(Debug, Clone)]
pub enum Probe {
    /// Kafka's metadata name the broker that was asked.
    Kafka {
        /// `host:port`.
        brokers: String,
    },
    /// ClickHouse answers `/ping` and `SELECT 1`.
    ClickHouse {
        /// `http://user:password@host:port/database`.
        url: String,
    },
    /// Postgres takes a connection to the database.
    Postgres {
        /// `postgres://user:password@host:port/database`.
        url: String,
    },
    /// A GET is answered with a 2xx status.
    Http {
        /// The address of the page.
        url: String,
    },
}

impl Probe {
    /// Asks once.
    ///
    /// # Errors
    /// The reason why the server is not ready.
    pub async fn ask(&self) -> Result<(), Cause> {
        let answer = async {
            match self {
                Self::Kafka { brokers } => kafka::answers(brokers).await,
                Self::ClickHouse { url } => clickhouse::answers(url).await,
                Self::Postgres { url } => postgres::answers(url).await,
                Self::Http { url } => crate::http::page(url).await,
            }
        };
        tokio::time::timeout(LOOK, answer).await.unwrap_or_else(|_| Err("no answer within 2 s".into()))
    }
}

/// A server that can be started, stopped and killed any number of times, on the same port and data.
///
/// All methods take `&self`: one task may watch a server while another restarts it. Killed on drop.
#[derive(Debug)]
pub struct Server {
    name: String,
    url: String,
    launch: Launch,
    probe: Probe,
    start_deadline: Duration,
    process: Mutex<Option<Arc<Process>>>,
    // Starting and stopping are long; of two that come together one waits.
    turn: tokio::sync::Mutex<()>,
    // Tells the one who waits for a death that there is a new life.
    spawned: Notify,
    // Declared after the process: the folder goes when nothing writes there any more.
    scratch: Option<Scratch>,
}

impl Server {
    /// A server that is not started yet. `url` is where its clients find it.
    pub fn new(name: &str, url: &str, launch: Launch, probe: Probe) -> Self {
        // An engine needs nothing but time, of which a busy machine has less; a service may wait for what is not there.
        let seconds = if matches!(probe, Probe::Http { .. }) { 60 } else { 240 };
        Self {
            name: name.to_owned(),
            url: url.to_owned(),
            launch,
            probe,
            start_deadline: Duration::from_secs(seconds),
            process: Mutex::new(None),
            turn: tokio::sync::Mutex::new(()),
            spawned: Notify::new(),
            scratch: None,
        }
    }

    /// The same server with the folder it keeps everything in, to be removed with it.
    #[must_use]
    pub(crate) fn in_scratch(mut self, scratch: Option<Scratch>) -> Self {
        self.scratch = scratch;
        self
    }

    /// The name, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where clients find it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How it is started and stopped.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// The process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().filter(|process| process.exit_status().is_none()).map(|process| process.pid())
    }

    /// Starts the process, does nothing when it runs already, and waits until the server is ready.
    ///
    /// # Errors
    /// [`Error::Ended`] with the end of the log when the process ends first. [`Error::NotReady`] after 60 s, or 240 s
    /// for an engine; the process goes on then, for it may well do its work without what it waits for, as an edge does without Kafka.
    pub async fn start(&self) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let process = self.spawn()?;
        self.ready(&process).await
    }

    /// Starts the process, unless one runs already.
    fn spawn(&self) -> Result<Arc<Process>, Error> {
        let mut slot = self.process();
        if let Some(process) = slot.as_ref().filter(|process| process.exit_status().is_none()) {
            return Ok(Arc::clone(process));
        }
        let process = Arc::new(Process::spawn(self.launch.clone())?);
        *slot = Some(Arc::clone(&process));
        self.spawned.notify_one();
        Ok(process)
    }

    async fn ready(&self, process: &Process) -> Result<(), Error> {
        let ended = |status| Error::Ended {
            name: self.name.clone(),
            status,
            log: self.launch.log.clone(),
            tail: tail(&self.launch.log, TAIL),
        };
        tokio::select! {
            Some(status) = process.ended() => Err(ended(status)),
            ready = until(&self.name, self.start_deadline, || self.probe.ask()) => ready,
        }
    }

    /// Asks whether it is ready now.
    ///
    /// # Errors
    /// The reason why it is not.
    pub async fn check(&self) -> Result<(), Cause> {
        if self.pid().is_none() {
            return Err("not running".into());
        }
        self.probe.ask().await
    }

    /// Stops it with its own signal, within its deadline; `None` when it was not running.
    pub async fn stop(&self) -> Option<Stopped> {
        let _turn = self.turn.lock().await;
        self.end(End::Stop).await
    }

    /// Kills it and every process under it (`kill -9`).
    pub async fn kill(&self) {
        let _turn = self.turn.lock().await;
        self.end(End::Kill).await;
    }

    /// Stops it and starts it again.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn restart(&self) -> Result<(), Error> {
        self.stop().await;
        self.start().await
    }

    /// Waits until a process of this server ends although nobody stopped it through this handle.
    ///
    /// For one task at a time; call it again after a restart.
    pub async fn died(&self) -> ExitStatus {
        loop {
            let process = self.process().clone();
            let Some(process) = process else {
                self.spawned.notified().await;
                continue;
            };
            let status = process.ended().await;
            let mut slot = self.process();
            // Another process, or none, is there now when somebody stopped this one.
            if slot.as_ref().is_some_and(|now| Arc::ptr_eq(now, &process)) {
                slot.take();
                if let Some(status) = status {
                    return status;
                }
            }
        }
    }

    async fn end(&self, how: End) -> Option<Stopped> {
        // Taken out first: its end is no surprise then.
        let process = self.process().take()?;
        match how {
            _ if process.exit_status().is_some() => None,
            End::Stop => Some(process.stop().await),
            End::Kill => {
                process.kill().await;
                Some(Stopped::Killed)
            }
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Arc<Process>>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a process is brought to its end.
enum End {
    Stop,
    Kill,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_is_not_ready_in_time_keeps_running() {
        let scratch = Scratch::new("server").unwrap();
        let launch = Launch::new("sleep", scratch.path().join("log")).arguments(["600"]);
        let nobody = format!("http://127.0.0.1:{}", crate::ports::free().unwrap());
        let mut server = Server::new("waiting", &nobody, launch, Probe::Http { url: nobody.clone() });
        server.start_deadline = Duration::from_millis(100);
        let refused = server.start().await.unwrap_err();
        assert!(matches!(refused, Error::NotReady { .. }), "{refused}");
        assert!(server.pid().is_some());
        assert!(server.check().await.is_err());
        server.kill().await;
        assert_eq!(server.pid(), None);
    }
}
