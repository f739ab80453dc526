//! The running stack: its engines, its services, and their status.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use devstack::process::{Stopped, tail};
use devstack::{Engine, Kind, Server};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{broadcast, watch};

use crate::compile::SERVICES;
use crate::demo_account;
use crate::environment::{Addresses, Services, url};
use crate::state::DemoAccount;
use crate::status::{ServerStatus, Status};
use crate::terminal::print_line;

/// What is known of a stack so far; `up` fills it step by step.
#[derive(Clone, Default)]
pub(crate) struct Parts {
    engines: BTreeMap<&'static str, Arc<Engine>>,
    /// The services, and the engines started by this stack.
    pub(crate) servers: BTreeMap<&'static str, Arc<Server>>,
    pub(crate) addresses: Option<Addresses>,
    pub(crate) services: Option<Services>,
    pub(crate) demo: Option<DemoAccount>,
    pub(crate) postgres_folder: Option<PathBuf>,
    pub(crate) receiver_port: Option<u16>,
}

/// The stack in the process that runs it.
pub(crate) struct Stack {
    parts: Mutex<Parts>,
    began: Instant,
    reports: broadcast::Sender<String>,
    stop: watch::Sender<bool>,
}

impl Stack {
    pub(crate) fn new() -> Self {
        Self {
            parts: Mutex::default(),
            began: Instant::now(),
            reports: broadcast::channel(100).0,
            stop: watch::channel(false).0,
        }
    }

    pub(crate) fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock()
    }

    /// Prints progress with the seconds since the start, and sends it to clients that wait for a stop.
    pub(crate) fn report(&self, text: &str) {
        let line = format!("[{:6.1} s] {text}", self.began.elapsed().as_secs_f32());
        print_line(&line);
        // Fails when there is no client.
        let _ = self.reports.send(line);
    }

    pub(crate) fn add_engine(&self, kind: Kind, engine: Engine) {
        let mut parts = self.parts();
        if let Some(server) = engine.server() {
            parts.servers.insert(kind.name(), Arc::clone(server));
        }
        parts.engines.insert(kind.name(), Arc::new(engine));
    }

    /// The services' programs and environment, once they are known.
    pub(crate) fn services(&self) -> anyhow::Result<Services> {
        self.parts().services.clone().context("the stack is still starting")
    }

    /// The environment variables with the engines' addresses.
    pub(crate) fn engine_variables(&self) -> Vec<(&'static str, String)> {
        let parts = self.parts();
        let url = |kind: Kind| Some((kind.variable(), parts.engines.get(kind.name())?.url().to_owned()));
        Kind::ALL.into_iter().filter_map(url).collect()
    }

    /// Stops a service or an engine.
    pub(crate) async fn stop_one(&self, name: &str) -> anyhow::Result<()> {
        match self.server(name)?.stop().await {
            Some(Stopped::Killed) => bail!("{name} did not stop within its deadline and was killed"),
            Some(Stopped::Ended(_)) | None => Ok(()),
        }
    }

    /// Finds a service or an engine that this stack starts.
    pub(crate) fn server(&self, name: &str) -> anyhow::Result<Arc<Server>> {
        let parts = self.parts();
        if let Some(server) = parts.servers.get(name) {
            return Ok(Arc::clone(server));
        }
        if parts.engines.contains_key(name) {
            bail!("{name} is external, by an environment variable: `./dev` does not start or stop it");
        }
        if SERVICES.contains(&name) || Kind::ALL.iter().any(|kind| kind.name() == name) {
            bail!("{name} has not started yet: the stack is still starting");
        }
        bail!("no service is called {name}: see `./dev status`")
    }

    /// Checks every service and engine.
    pub(crate) async fn status(&self) -> Status {
        let parts = self.parts().clone();
        let has_demo = parts.demo.is_some();
        let setup_token = parts.demo.as_ref().map(|demo| demo.setup_token.clone());
        let mut status = Status::not_running(parts.demo, parts.postgres_folder);
        let url_of = |kind: Kind| parts.engines.get(kind.name()).map(|engine| engine.url().to_owned());
        status.kafka = url_of(Kind::Kafka);
        status.clickhouse = url_of(Kind::ClickHouse);
        status.postgres = url_of(Kind::Postgres);
        status.api = parts.addresses.as_ref().map(|addresses| url(addresses.api));
        status.edge = parts.addresses.as_ref().map(|addresses| url(addresses.edge));
        status.receiver = parts.receiver_port.map(|port| format!("http://127.0.0.1:{port}/"));

        let checks: Vec<_> = status
            .services
            .into_iter()
            .map(|mut service| {
                let name = service.name.as_str();
                let engine = parts.engines.get(name).cloned();
                let server = parts.servers.get(name).cloned();
                let operations = parts.addresses.as_ref().and_then(|all| all.operations.get(name));
                service.operations = operations.map(|address| url(*address));
                tokio::spawn(check(service, engine, server))
            })
            .collect();
        let mut services = Vec::new();
        for check in checks {
            // A check that panicked is missing from the list.
            services.extend(check.await);
        }
        status.ready = has_demo
            && services.len() == SERVICES.len() + Kind::ALL.len()
            && services.iter().all(|service| service.ready);
        status.services = services;
        if let Some(api) = &status.api {
            status.dashboard = Some(format!("{api}/app/"));
            status.setup_token = if demo_account::is_setup_needed(api).await { setup_token } else { None };
        }
        status
    }

    /// Requests a stop of the whole stack; returns the reports from then on.
    pub(crate) fn request_stop(&self) -> broadcast::Receiver<String> {
        let reports = self.reports.subscribe();
        self.stop.send_replace(true);
        reports
    }

    /// Waits for [`Stack::request_stop`].
    pub(crate) async fn stop_requested(&self) {
        // Cannot fail: the sender exists as long as the stack.
        let _ = self.stop.subscribe().wait_for(|stop| *stop).await;
    }

    /// Starts to report every service and engine that ends unexpectedly.
    pub(crate) fn watch(self: &Arc<Self>) {
        let servers = self.parts().servers.clone();
        for server in servers.into_values() {
            let stack = Arc::clone(self);
            tokio::spawn(async move {
                loop {
                    let status = server.died().await;
                    let (name, log) = (server.name(), &server.launch().log);
                    stack.report(&format!(
                        "{name} ended unexpectedly with {status}; `./dev start {name}` starts it again. The end of {}:\n{}",
                        log.display(),
                        tail(log, 20)
                    ));
                }
            });
        }
    }

    /// Stops the services, then the engines: services write their last data into running engines.
    pub(crate) async fn stop_all(&self) {
        let (services, engines): (Vec<_>, Vec<_>) =
            self.parts().servers.clone().into_iter().partition(|(name, _)| SERVICES.contains(name));
        self.stop_together(services).await;
        self.stop_together(engines).await;
    }

    async fn stop_together(&self, servers: Vec<(&str, Arc<Server>)>) {
        let running: Vec<_> = servers.into_iter().filter(|(_, server)| server.pid().is_some()).collect();
        if running.is_empty() {
            return;
        }
        let names: Vec<&str> = running.iter().map(|(name, _)| *name).collect();
        self.report(&format!("stopping {}", names.join(", ")));
        let stops: Vec<_> = running
            .into_iter()
            .map(|(_, server)| tokio::spawn(async move { (server.stop().await, server) }))
            .collect();
        for stop in stops {
            // A panic has dropped the server, which kills it.
            let Ok((stopped, server)) = stop.await else { continue };
            let (name, deadline) = (server.name(), server.launch().stop_deadline);
            match stopped {
                Some(Stopped::Killed) => {
                    self.report(&format!("{name} did not stop within {deadline:?}: killed"));
                }
                Some(Stopped::Ended(status)) if SERVICES.contains(&name) && !status.success() => {
                    self.report(&format!("{name} ended with {status}"));
                }
                _ => {}
            }
        }
    }
}

async fn check(
    mut service: ServerStatus,
    engine: Option<Arc<Engine>>,
    server: Option<Arc<Server>>,
) -> ServerStatus {
    service.pid = server.as_ref().and_then(|server| server.pid());
    let checked = match (engine, server) {
        (Some(engine), _) => engine.check().await,
        (None, Some(server)) => server.check().await,
        (None, None) => return service,
    };
    service.ready = checked.is_ok();
    service.reason = checked.err().map(|error| error.to_string());
    service
}
