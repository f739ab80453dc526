//! The running stack: its engines, its services, and their status.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, bail};
use devstack::process::{Stopped, tail};
use devstack::{Engine, Kind, Server};
use tokio::sync::{broadcast, watch};

use crate::compile::SERVICES;
use crate::demo;
use crate::environment::{Addresses, Services, url};
use crate::state::Demo;
use crate::status::{Service, Status};
use crate::terminal::say;

/// Everything that a stack has so far; it fills while the stack starts.
#[derive(Default)]
struct Parts {
    engines: BTreeMap<&'static str, Arc<Engine>>,
    servers: BTreeMap<&'static str, Arc<Server>>,
    addresses: Option<Addresses>,
    services: Option<Services>,
    demo: Option<Demo>,
    postgres_folder: Option<PathBuf>,
    receiver: Option<u16>,
}

/// The stack as its supervisor holds it.
pub(crate) struct Stack {
    parts: Mutex<Parts>,
    began: Instant,
    news: broadcast::Sender<String>,
    stop: watch::Sender<bool>,
}

impl Stack {
    pub(crate) fn new() -> Self {
        Self {
            parts: Mutex::default(),
            began: Instant::now(),
            news: broadcast::channel(100).0,
            stop: watch::channel(false).0,
        }
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how far it is, with the seconds since the start.
    pub(crate) fn tell(&self, text: &str) {
        let line = format!("[{:6.1} s] {text}", self.began.elapsed().as_secs_f32());
        say(&line);
        // Nobody may listen.
        let _ = self.news.send(line);
    }

    pub(crate) fn add_engine(&self, kind: Kind, engine: Engine) {
        let mut parts = self.parts();
        if let Some(server) = engine.server() {
            parts.servers.insert(kind.name(), Arc::clone(server));
        }
        parts.engines.insert(kind.name(), Arc::new(engine));
    }

    pub(crate) fn add_server(&self, name: &'static str, server: Arc<Server>) {
        self.parts().servers.insert(name, server);
    }

    pub(crate) fn set_addresses(&self, addresses: Addresses) {
        self.parts().addresses = Some(addresses);
    }

    pub(crate) fn set_services(&self, services: Services) {
        self.parts().services = Some(services);
    }

    pub(crate) fn set_demo(&self, demo: Demo) {
        self.parts().demo = Some(demo);
    }

    pub(crate) fn set_postgres_folder(&self, folder: PathBuf) {
        self.parts().postgres_folder = Some(folder);
    }

    pub(crate) fn set_receiver(&self, port: u16) {
        self.parts().receiver = Some(port);
    }

    /// The services' programs and environment, once they are known.
    pub(crate) fn services(&self) -> anyhow::Result<Services> {
        self.parts().services.clone().context("the stack is still starting")
    }

    /// The engines' addresses by variable.
    pub(crate) fn engine_variables(&self) -> Vec<(&'static str, String)> {
        let parts = self.parts();
        let found = Kind::ALL
            .into_iter()
            .filter_map(|kind| Some((kind.variable(), parts.engines.get(kind.name())?.url().to_owned())));
        found.collect()
    }

    /// Stops one by name.
    pub(crate) async fn stop_one(&self, name: &str) -> anyhow::Result<()> {
        match self.server(name)?.stop().await {
            Some(Stopped::Killed) => bail!("{name} did not stop within its deadline and was killed"),
            Some(Stopped::Ended(_)) | None => Ok(()),
        }
    }

    /// Finds a service or an engine of ours by name.
    pub(crate) fn server(&self, name: &str) -> anyhow::Result<Arc<Server>> {
        let parts = self.parts();
        if let Some(server) = parts.servers.get(name) {
            return Ok(Arc::clone(server));
        }
        if parts.engines.contains_key(name) {
            bail!("an environment variable names {name}, so `./dev` does not start or stop it");
        }
        if SERVICES.contains(&name) || Kind::ALL.iter().any(|kind| kind.name() == name) {
            bail!("{name} has not started yet: the stack is still starting");
        }
        bail!("no service is called {name}: see `./dev status`")
    }

    /// What runs at this moment, by looking at it.
    pub(crate) async fn status(&self) -> Status {
        let (engines, servers, addresses, demo, postgres_folder) = {
            let parts = self.parts();
            let addresses = parts.addresses.clone();
            (
                parts.engines.clone(),
                parts.servers.clone(),
                addresses,
                parts.demo.clone(),
                parts.postgres_folder.clone(),
            )
        };
        let has_demo = demo.is_some();
        let setup_token = demo.as_ref().map(|demo| demo.setup_token.clone());
        let mut status = Status::without_servers(demo, postgres_folder);
        let url_of = |kind: Kind| engines.get(kind.name()).map(|engine| engine.url().to_owned());
        status.kafka = url_of(Kind::Kafka);
        status.clickhouse = url_of(Kind::ClickHouse);
        status.postgres = url_of(Kind::Postgres);
        status.api = addresses.as_ref().map(Addresses::api_url);
        status.edge = addresses.as_ref().map(Addresses::edge_url);
        status.receiver = self.parts().receiver.map(|port| format!("http://127.0.0.1:{port}/"));

        // All at once: one that hangs takes the others no time.
        let looks = status.services.into_iter().map(|mut service| {
            let engine = engines.get(service.name.as_str()).cloned();
            let server = servers.get(service.name.as_str()).cloned();
            let operations = addresses.as_ref().and_then(|all| all.operations.get(service.name.as_str()));
            service.operations = operations.map(|address| url(*address));
            tokio::spawn(async move { look(service, engine.as_deref(), server.as_deref()).await })
        });
        let looks: Vec<_> = looks.collect();
        let mut services = Vec::new();
        for look in looks {
            // A look that panicked is left out, and so seen.
            services.extend(look.await);
        }
        status.ready = has_demo
            && services.len() == SERVICES.len() + Kind::ALL.len()
            && services.iter().all(|s| s.ready);
        status.services = services;
        if let Some(api) = &status.api {
            status.dashboard = Some(format!("{api}/app/"));
            status.setup_token = if demo::is_setup_needed(api).await { setup_token } else { None };
        }
        status
    }

    /// Asks the supervisor to stop everything; returns the news from then on.
    pub(crate) fn stop_requested(&self) -> broadcast::Receiver<String> {
        let news = self.news.subscribe();
        self.stop.send_replace(true);
        news
    }

    /// Waits for a request to stop everything.
    pub(crate) async fn asked_to_stop(&self) {
        let mut stop = self.stop.subscribe();
        // The sender is ours, so it is there.
        let _ = stop.wait_for(|stop| *stop).await;
    }

    /// Reports every service and engine that ends unexpectedly, from now on.
    pub(crate) fn watch(self: &Arc<Self>) {
        let servers = self.parts().servers.clone();
        for server in servers.into_values() {
            let stack = Arc::clone(self);
            tokio::spawn(async move {
                loop {
                    let status = server.died().await;
                    let (name, log) = (server.name(), &server.launch().log);
                    stack.tell(&format!(
                        "{name} ended unexpectedly with {status}; `./dev start {name}` starts it again. The end of {}:\n{}",
                        log.display(),
                        tail(log, 20)
                    ));
                }
            });
        }
    }

    /// Stops the services, then the engines: what the services still hold goes into running engines.
    pub(crate) async fn stop_all(&self) {
        let (services, engines): (Vec<_>, Vec<_>) =
            self.parts().servers.clone().into_iter().partition(|(name, _)| SERVICES.contains(name));
        // The services never call each other, and the engines neither, so none needs another to finish.
        self.stop_together(services).await;
        self.stop_together(engines).await;
    }

    async fn stop_together(&self, servers: Vec<(&str, Arc<Server>)>) {
        let running: Vec<_> = servers.into_iter().filter(|(_, server)| server.pid().is_some()).collect();
        if running.is_empty() {
            return;
        }
        let names: Vec<&str> = running.iter().map(|(name, _)| *name).collect();
        self.tell(&format!("stopping {}", names.join(", ")));
        let stops: Vec<_> = running
            .into_iter()
            .map(|(_, server)| tokio::spawn(async move { (server.stop().await, server) }))
            .collect();
        for stop in stops {
            // A stop that panicked has dropped the server, which kills it.
            let Ok((stopped, server)) = stop.await else { continue };
            let (name, seconds) = (server.name(), server.launch().stop_deadline.as_secs());
            match stopped {
                Some(Stopped::Killed) => {
                    self.tell(&format!("{name} did not stop within {seconds} s: killed"));
                }
                Some(Stopped::Ended(status)) if SERVICES.contains(&name) && !status.success() => {
                    self.tell(&format!("{name} ended with {status}"));
                }
                _ => {}
            }
        }
    }
}

async fn look(mut service: Service, engine: Option<&Engine>, server: Option<&Server>) -> Service {
    service.pid = server.and_then(Server::pid);
    let checked = match (engine, server) {
        (Some(engine), _) => engine.check().await,
        (None, Some(server)) => server.check().await,
        (None, None) => return service,
    };
    service.ready = checked.is_ok();
    service.reason = checked.err().map(|error| error.to_string());
    service
}
