//! A server: a process and its readiness check.

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::process::{Launch, Process, Stopped, is_paused, tail};
use crate::readiness::until;
use crate::scratch::Scratch;
use crate::{Cause, Error, Probe};

/// How many lines of a server's log an error shows.
const TAIL: usize = 25;

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
    // Held during a start or a stop: they take long and must not overlap.
    transition: tokio::sync::Mutex<()>,
    // Wakes `died` after a start.
    spawned: Notify,
    // Dropped after the process, which writes to the folder.
    _scratch: Option<Scratch>,
}

impl Server {
    /// Describes a server without starting it. `url` is the address for clients.
    pub fn new(name: &str, url: &str, launch: Launch, probe: Probe) -> Self {
        // Engines depend on nothing but may be slow on a busy machine; a service may wait for an engine that is down.
        let seconds = if matches!(probe, Probe::Http { .. }) { 60 } else { 240 };
        Self {
            name: name.to_owned(),
            url: url.to_owned(),
            launch,
            probe,
            start_deadline: Duration::from_secs(seconds),
            process: Mutex::new(None),
            transition: tokio::sync::Mutex::new(()),
            spawned: Notify::new(),
            _scratch: None,
        }
    }

    /// Starts an engine, which owns its temporary folder, and waits until it is ready.
    pub(crate) async fn start_engine(
        name: &str,
        url: &str,
        launch: Launch,
        probe: Probe,
        scratch: Option<Scratch>,
    ) -> Result<Self, Error> {
        let server = Self { _scratch: scratch, ..Self::new(name, url, launch, probe) };
        server.start().await?;
        Ok(server)
    }

    /// The display name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address for clients.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How it is started and stopped.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// The process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process
            .lock()
            .as_ref()
            .filter(|process| process.exit_status().is_none())
            .map(|process| process.pid())
    }

    /// Starts the process unless it runs already, lets a paused one continue, and waits until the server is ready.
    ///
    /// # Errors
    /// [`Error::Ended`] with the end of the log when the process ends first. [`Error::NotReady`] after 60 s, or 240 s
    /// for an engine; the process keeps running then, because it may work without what it waits for, as an edge does
    /// without Kafka.
    pub async fn start(&self) -> Result<(), Error> {
        let _transition = self.transition.lock().await;
        let process = self.spawn()?;
        let ended = |status| Error::Ended {
            name: self.name.clone(),
            status,
            log: self.launch.log.clone(),
            tail: tail(&self.launch.log, TAIL),
        };
        tokio::select! {
            Some(status) = process.ended() => Err(ended(status)),
            ready = until(&self.name, self.start_deadline, || self.probe.check()) => ready,
        }
    }

    /// Starts the process unless it runs already.
    fn spawn(&self) -> Result<Arc<Process>, Error> {
        let mut slot = self.process.lock();
        if let Some(process) = slot.as_ref().filter(|process| process.exit_status().is_none()) {
            process.resume();
            return Ok(Arc::clone(process));
        }
        let process = Arc::new(Process::spawn(self.launch.clone())?);
        *slot = Some(Arc::clone(&process));
        self.spawned.notify_one();
        Ok(process)
    }

    /// Checks whether it is ready now.
    ///
    /// # Errors
    /// The reason why it is not.
    pub async fn check(&self) -> Result<(), Cause> {
        match self.pid() {
            None => return Err("not running".into()),
            Some(pid) if is_paused(pid) => return Err("paused".into()),
            Some(_) => {}
        }
        self.probe.check().await
    }

    /// Stops it by its stop signal and kills it after its stop deadline; returns `None` when it was not running.
    pub async fn stop(&self) -> Option<Stopped> {
        let _transition = self.transition.lock().await;
        Some(self.take_running()?.stop().await)
    }

    /// Kills it and all its descendants (`kill -9`).
    pub async fn kill(&self) {
        let _transition = self.transition.lock().await;
        if let Some(process) = self.take_running() {
            process.kill().await;
        }
    }

    /// Pauses it and all its descendants until [`Server::resume`], [`Server::start`] or [`Server::stop`].
    ///
    /// # Errors
    /// When it is not running, or does not pause within 10 s.
    pub async fn pause(&self) -> Result<(), Error> {
        let _transition = self.transition.lock().await;
        self.running()?.pause().await
    }

    /// Lets it and all its descendants continue.
    ///
    /// # Errors
    /// When it is not running.
    pub async fn resume(&self) -> Result<(), Error> {
        let _transition = self.transition.lock().await;
        self.running()?.resume();
        Ok(())
    }

    /// Returns whether it runs and is not paused.
    pub fn is_active(&self) -> bool {
        self.pid().is_some_and(|pid| !is_paused(pid))
    }

    fn running(&self) -> Result<Arc<Process>, Error> {
        let process = self.process.lock().clone().filter(|process| process.exit_status().is_none());
        process.ok_or_else(|| Error::Invalid(format!("{} is not running", self.name)))
    }

    /// Takes the process, so that [`Server::died`] does not report its end.
    fn take_running(&self) -> Option<Arc<Process>> {
        self.process.lock().take().filter(|process| process.exit_status().is_none())
    }

    /// Stops it and starts it again.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn restart(&self) -> Result<(), Error> {
        self.stop().await;
        self.start().await
    }

    /// Waits until a process of this server ends without [`Server::stop`] or [`Server::kill`].
    ///
    /// For one task at a time; call it again after a restart.
    pub async fn died(&self) -> ExitStatus {
        loop {
            let process = self.process.lock().clone();
            let Some(process) = process else {
                self.spawned.notified().await;
                continue;
            };
            let status = process.ended().await;
            let mut slot = self.process.lock();
            // A stop has emptied the slot, and a start may have filled it again.
            if slot.as_ref().is_some_and(|now| Arc::ptr_eq(now, &process)) {
                slot.take();
                if let Some(status) = status {
                    return status;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_is_not_ready_in_time_keeps_running() {
        let scratch = Scratch::new("server").unwrap();
        let launch = Launch::new("sleep", scratch.path().join("log")).arguments(["600"]);
        let unused = format!("http://127.0.0.1:{}", crate::ports::free().unwrap());
        let mut server = Server::new("waiting", &unused, launch, Probe::Http { url: unused.clone() });
        server.start_deadline = Duration::from_millis(100);
        let error = server.start().await.unwrap_err();
        assert!(matches!(error, Error::NotReady { .. }), "{error}");
        assert!(server.pid().is_some());
        assert!(server.check().await.is_err());
        server.kill().await;
        assert_eq!(server.pid(), None);
    }
}
