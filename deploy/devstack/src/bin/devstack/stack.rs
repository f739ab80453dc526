//! The running stack: its engines, its services, and their status.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, anyhow, bail, ensure};
use devstack::process::{Stopped, tail};
use devstack::{Engine, Kind, Server};
use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use schemas::grants::User;
use tokio::sync::{broadcast, watch};

use crate::access::Access;
use crate::action::Action;
use crate::environment::{Instance, Services, public_urls, url};
use crate::members::{Member, Topology};
use crate::pair::Pair;
use crate::state::DemoAccount;
use crate::status::{ClusterStatus, ServerStatus, Status};
use crate::terminal::print_line;
use crate::{addresses, demo_account};

/// What is known of a stack so far; `up` fills it step by step.
#[derive(Clone, Default)]
pub(crate) struct Parts {
    /// The engines that are not started by this stack, by name.
    external: BTreeMap<&'static str, Arc<Engine>>,
    /// The services and engines that this stack has started, by name.
    pub(crate) servers: BTreeMap<String, Arc<Server>>,
    /// The certificates and passwords of a cluster.
    pub(crate) access: Option<Access>,
    /// The two servers of Postgres in a cluster.
    pub(crate) pair: Option<Arc<Pair>>,
    pub(crate) instances: Vec<Instance>,
    pub(crate) services: Option<Services>,
    pub(crate) demo: Option<DemoAccount>,
    pub(crate) postgres_folder: Option<PathBuf>,
    pub(crate) receiver_port: Option<u16>,
}

/// The stack in the process that runs it.
pub(crate) struct Stack {
    topology: Topology,
    parts: Mutex<Parts>,
    began: Instant,
    reports: broadcast::Sender<String>,
    stop: watch::Sender<bool>,
}

impl Stack {
    pub(crate) fn new(topology: Topology) -> Self {
        Self {
            topology,
            parts: Mutex::default(),
            began: Instant::now(),
            reports: broadcast::channel(100).0,
            stop: watch::channel(false).0,
        }
    }

    pub(crate) fn topology(&self) -> Topology {
        self.topology
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

    pub(crate) fn add_external(&self, kind: Kind, engine: Engine) {
        self.parts().external.insert(kind.name(), Arc::new(engine));
    }

    pub(crate) fn add_server(&self, server: Server) -> Arc<Server> {
        let server = Arc::new(server);
        self.parts().servers.insert(server.name().to_owned(), Arc::clone(&server));
        server
    }

    /// The services' programs and environment, once they are known.
    pub(crate) fn services(&self) -> anyhow::Result<Services> {
        self.parts().services.clone().context("the stack is still starting")
    }

    /// The environment variables with which a user reaches the engines.
    pub(crate) fn engine_variables(&self, user: User) -> BTreeMap<String, String> {
        let parts = self.parts();
        let urls = |kind| self.urls(&parts, kind);
        addresses::variables(self.topology, urls, parts.access.as_ref(), user)
    }

    /// Returns the URLs of an engine's servers.
    fn urls(&self, parts: &Parts, kind: Kind) -> Vec<String> {
        if let Some(engine) = parts.external.get(kind.name()) {
            return vec![engine.url().to_owned()];
        }
        let members = self.topology.named(kind.name()).into_iter();
        members.filter_map(|member| Some(parts.servers.get(&member.name)?.url().to_owned())).collect()
    }

    /// Starts, stops, … a server, or all of a service or an engine.
    pub(crate) async fn apply(&self, action: Action, name: &str) -> anyhow::Result<()> {
        let pair = self.parts().pair.clone();
        let role = |server: &Server| pair.as_ref().and_then(|pair| pair.role(server.name()));
        let mut servers = self.servers(name)?;
        // The standby of Postgres starts from its primary.
        servers.sort_by_key(|server| role(server));
        let apply = async |server: Arc<Server>| match &pair {
            Some(pair) if role(&server).is_some() => pair.apply(action, &server).await,
            _ => action.apply(&server).await,
        };
        let failures: Vec<String> = join_all(servers.into_iter().map(apply))
            .await
            .into_iter()
            .filter_map(|applied| applied.err().map(|error| format!("{error:#}")))
            .collect();
        if failures.is_empty() { Ok(()) } else { Err(anyhow!(failures.join("\n"))) }
    }

    /// Makes a standby of Postgres the primary.
    pub(crate) async fn promote(&self, name: &str) -> anyhow::Result<()> {
        ensure!(self.topology == Topology::Cluster, "only a cluster has a standby: see `./dev up --help`");
        let pair = self.parts().pair.clone().context("Postgres has not started yet")?;
        pair.promote(name).await
    }

    /// Finds the servers that a name means, all of which this stack starts.
    fn servers(&self, name: &str) -> anyhow::Result<Vec<Arc<Server>>> {
        let parts = self.parts();
        if parts.external.contains_key(name) {
            bail!("{name} is external, by an environment variable: `./dev` does not start or stop it");
        }
        let members = self.topology.named(name);
        ensure!(!members.is_empty(), "no service is called {name}; choose one of {}", self.topology.names());
        let server = |member: Member| {
            let server = parts.servers.get(&member.name).cloned();
            server
                .with_context(|| format!("{} has not started yet: the stack is still starting", member.name))
        };
        members.into_iter().map(server).collect()
    }

    /// Checks every service and engine.
    pub(crate) async fn status(&self) -> Status {
        let parts = self.parts().clone();
        let is_cluster = self.topology == Topology::Cluster;
        let setup_token = parts.demo.as_ref().map(|demo| demo.setup_token.clone());
        let mut status =
            Status::not_running(self.topology, parts.demo.clone(), parts.postgres_folder.clone());
        status.kafka = addresses::kafka(&self.urls(&parts, Kind::Kafka));
        status.postgres = addresses::postgres(&self.urls(&parts, Kind::Postgres));
        let (apis, edges) = (public_urls(&parts.instances, "api"), public_urls(&parts.instances, "ingest"));
        (status.api, status.edge) = (apis.first().cloned(), edges.first().cloned());
        if is_cluster {
            status.cluster =
                Some(ClusterStatus::new(edges, apis, status.kafka.as_deref(), parts.access.as_ref()));
        }
        status.receiver = parts.receiver_port.map(|port| format!("http://127.0.0.1:{port}/"));

        let checks = std::mem::take(&mut status.services).into_iter().map(|mut service| {
            let name = service.name.as_str();
            let engine = parts.external.get(name).cloned();
            let server = parts.servers.get(name).cloned();
            let instance = parts.instances.iter().find(|instance| instance.name == name);
            service.operations = instance.map(|instance| url(instance.operations));
            if is_cluster {
                service.url = match instance {
                    Some(instance) => instance.public.map(url),
                    None => server.as_ref().map(|server| server.url().to_owned()),
                };
                let role = parts.pair.as_ref().and_then(|pair| pair.role(name));
                service.role = role.map(str::to_owned);
            }
            tokio::spawn(check(service, engine, server))
        });
        // A check that panicked is missing from the list.
        status.services = join_all(checks).await.into_iter().flatten().collect();
        status.ready = parts.demo.is_some()
            && status.services.len() == self.topology.members().len()
            && status.services.iter().all(|service| service.ready);
        status.clickhouse = self.clickhouse(&parts, &status.services);
        if let Some(api) = &status.api {
            status.dashboard = Some(format!("{api}/app/"));
            status.setup_token = if demo_account::is_setup_needed(api).await { setup_token } else { None };
        }
        status
    }

    /// Returns the URL of a server of ClickHouse, of one that is ready if any is.
    fn clickhouse(&self, parts: &Parts, services: &[ServerStatus]) -> Option<String> {
        let is_ready =
            |url: &String| services.iter().any(|service| service.ready && service.url.as_ref() == Some(url));
        let urls = self.urls(parts, Kind::ClickHouse);
        urls.iter().find(|url| is_ready(url)).or(urls.first()).cloned()
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
                    stack.released_from(&server).await;
                    let (name, log) = (server.name(), &server.launch().log);
                    stack.report(&format!(
                        "{name} ended unexpectedly with {status}; `./dev start {name}` starts it again. \
                            The end of {}:\n{}",
                        log.display(),
                        tail(log, 20)
                    ));
                }
            });
        }
    }

    /// Lets Postgres' primary no longer wait for a standby that has ended.
    async fn released_from(&self, server: &Server) {
        let pair = self.parts().pair.clone().filter(|pair| pair.role(server.name()).is_some());
        if let Some(pair) = pair
            && let Err(error) = pair.ended().await
        {
            self.report(&format!("{} ended, and {error:#}", server.name()));
        }
    }

    /// Stops the services, then the engines: services write their last data into running engines.
    pub(crate) async fn stop_all(&self) {
        let servers = self.parts().servers.clone();
        let of = |member: &Member| servers.get(&member.name).cloned();
        let (services, engines): (Vec<_>, Vec<_>) =
            self.topology.members().into_iter().partition(Member::is_service);
        self.stop_together(services.iter().filter_map(of).collect(), true).await;
        self.stop_together(engines.iter().filter_map(of).collect(), false).await;
    }

    async fn stop_together(&self, servers: Vec<Arc<Server>>, are_services: bool) {
        let running: Vec<_> = servers.into_iter().filter(|server| server.pid().is_some()).collect();
        if running.is_empty() {
            return;
        }
        let names: Vec<&str> = running.iter().map(|server| server.name()).collect();
        self.report(&format!("stopping {}", names.join(", ")));
        let stops: Vec<_> = running
            .into_iter()
            .map(|server| tokio::spawn(async move { (server.stop().await, server) }))
            .collect();
        for stop in stops {
            // A panic has dropped the server, which kills it.
            let Ok((stopped, server)) = stop.await else { continue };
            let (name, deadline) = (server.name(), server.launch().stop_deadline);
            match stopped {
                Some(Stopped::Killed) => {
                    self.report(&format!("{name} did not stop within {deadline:?}: killed"));
                }
                Some(Stopped::Ended(status)) if are_services && !status.success() => {
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
