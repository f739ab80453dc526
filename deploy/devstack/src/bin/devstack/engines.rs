//! Starts the engines of a stack.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use devstack::install::Cache;
use devstack::{Engine, Error, Kind, Options, Server, clickhouse, clickhouse_cluster, kafka, postgres};

use crate::access::Access;
use crate::folder::Folder;
use crate::members::Topology;
use crate::pair::{Node, Pair};
use crate::receiver;
use crate::stack::Stack;
use crate::state::{STATE, Secrets, State};

/// The webhook receiver's key among the remembered ports.
const RECEIVER: &str = "receiver";

/// The user's variable with the prefix of all topics.
const TOPIC_PREFIX: &str = "HOPLINE_TOPIC_PREFIX";

/// Returns the downloaded engines and data.
pub(crate) fn cache(folder: &Folder, stack: &Arc<Stack>) -> Cache {
    let stack = Arc::clone(stack);
    Cache::new(folder.engines(), Arc::new(move |text| stack.report(text)))
}

/// Returns an error when a cluster is to have external engines.
pub(crate) fn check_externals(topology: Topology) -> anyhow::Result<()> {
    let external = Kind::ALL.into_iter().find(|kind| kind.external_url().is_some());
    if let (Topology::Cluster, Some(kind)) = (topology, external) {
        bail!("a cluster starts its own engines, but {} is set: unset it", kind.variable());
    }
    Ok(())
}

/// Starts the engines and the webhook receiver, on the ports of the last time if they are free.
pub(crate) async fn start(folder: &Folder, stack: &Arc<Stack>, secrets: &Secrets) -> anyhow::Result<()> {
    let mut state: State = folder.read(STATE)?.unwrap_or_default();
    if stack.topology() == Topology::Cluster {
        stack.parts().access = Some(Access::of(folder, secrets)?);
    }
    let mut postgres_folder = None;
    if Kind::Postgres.external_url().is_none() {
        postgres_folder = Some(folder.postgres_folder(&mut state)?);
        // Written before the folder is created, so that `reset` finds it.
        folder.write(STATE, &state)?;
        stack.parts().postgres_folder.clone_from(&postgres_folder);
    }
    let start = Start {
        folder,
        stack,
        state: &state,
        password: &secrets.engine_password,
        postgres_folder: postgres_folder.unwrap_or_default(),
        cache: cache(folder, stack),
    };
    stack.report("starting Kafka, ClickHouse and Postgres");
    tokio::try_join!(
        start.engine(Kind::Kafka),
        start.engine(Kind::ClickHouse),
        start.engine(Kind::Postgres)
    )?;
    for (name, server) in &stack.parts().servers {
        if let Some(port) = port_of(server.url()) {
            state.ports.insert(name.clone(), port);
        }
    }
    let port = receiver::serve(state.ports.get(RECEIVER).copied().unwrap_or(0)).await?;
    state.ports.insert(RECEIVER.to_owned(), port);
    stack.parts().receiver_port = Some(port);
    folder.write(STATE, &state)
}

/// What the start of an engine depends on.
struct Start<'a> {
    folder: &'a Folder,
    stack: &'a Arc<Stack>,
    state: &'a State,
    password: &'a str,
    /// Of the only server of Postgres, or of all.
    postgres_folder: PathBuf,
    cache: Cache,
}

impl Start<'_> {
    async fn engine(&self, kind: Kind) -> anyhow::Result<()> {
        let began = Instant::now();
        if let Some(engine) = Engine::external(kind).await? {
            self.stack.report(&format!("{} ready: external, by {}", kind.name(), kind.variable()));
            self.stack.add_external(kind, engine);
            return Ok(());
        }
        let topology = self.stack.topology();
        let options = |name: &str| self.options(name);
        let servers = match (kind, topology) {
            (Kind::Kafka, _) => kafka::start_cluster(topology.brokers(), options).await?,
            (Kind::ClickHouse, Topology::Single) => vec![clickhouse::start(options(kind.name())?).await?],
            (Kind::ClickHouse, Topology::Cluster) => {
                let (shards, replicas) = (topology.shards(), topology.replicas());
                let cluster = clickhouse_cluster::start_cluster(shards, replicas, options).await?;
                cluster.shards.into_iter().flatten().chain([cluster.zookeeper]).collect()
            }
            (Kind::Postgres, Topology::Single) => vec![postgres::start(options(kind.name())?).await?],
            (Kind::Postgres, Topology::Cluster) => self.pair().await?,
        };
        let names: Vec<&str> = servers.iter().map(Server::name).collect();
        let seconds = began.elapsed().as_secs_f32();
        self.stack.report(&format!("{} ready after {seconds:.1} s", names.join(", ")));
        let servers: Vec<Arc<Server>> =
            servers.into_iter().map(|server| self.stack.add_server(server)).collect();
        if kind == Kind::Kafka {
            self.add_acls(&servers).await?;
        }
        if let (Kind::Postgres, [primary, standby]) = (kind, &servers[..]) {
            let node = |server: &Arc<Server>| Node {
                server: Arc::clone(server),
                folder: self.postgres_folder.join(server.name()),
            };
            let pair = Pair::new(node(primary), node(standby), self.folder.clone()).await?;
            self.stack.parts().pair = Some(Arc::new(pair));
        }
        Ok(())
    }

    /// Gives the users of a cluster's brokers their rights.
    async fn add_acls(&self, servers: &[Arc<Server>]) -> anyhow::Result<()> {
        let Some(access) = self.stack.parts().access.clone() else { return Ok(()) };
        let brokers: Vec<&str> = servers.iter().map(|server| server.url()).collect();
        let prefix = std::env::var(TOPIC_PREFIX).unwrap_or_default();
        let client = access.kafka(&brokers.join(","), None);
        Ok(acls::add(client.into_iter().collect(), schemas::grants::kafka(&prefix)).await?)
    }

    /// Starts Postgres' primary, and its standby from a copy of it.
    async fn pair(&self) -> anyhow::Result<Vec<Server>> {
        let mut names: Vec<String> = self
            .stack
            .topology()
            .named(Kind::Postgres.name())
            .into_iter()
            .map(|member| member.name)
            .collect();
        // The one that was promoted last comes first.
        names.sort_by_key(|name| self.state.postgres_primary.as_ref() != Some(name));
        let [primary, standby] = &names[..] else {
            bail!("Postgres has other servers: {}", names.join(", "))
        };
        let options = self.options(primary)?;
        let folder = options.folder.clone();
        let primary = postgres::start(options).await?;
        // Only if a promotion was interrupted.
        postgres::promote(&primary).await?;
        let standby = postgres::start_standby(&primary, &folder, self.options(standby)?)
            .await
            .with_context(|| format!("{standby}, a copy of {}", primary.name()))?;
        Ok(vec![primary, standby])
    }

    /// Returns the options of a server.
    fn options(&self, name: &str) -> Result<Options, Error> {
        let data = match self.stack.topology() {
            _ if !name.starts_with(Kind::Postgres.name()) => self.folder.data(name),
            Topology::Single => self.postgres_folder.clone(),
            Topology::Cluster => self.postgres_folder.join(name),
        };
        let port = self.state.ports.get(name).copied().unwrap_or(0);
        let mut options =
            Options::in_folder(name, data, self.folder.log(name), port, self.password, self.cache.clone());
        if let Some(access) = &self.stack.parts().access {
            options.users.clone_from(&access.users);
            options.tls = Some(access.tls.clone());
        }
        Ok(options)
    }
}

/// Returns the port of `host:port` or of a URL.
fn port_of(url: &str) -> Option<u16> {
    let address = url.split_once('@').map_or(url, |(_, address)| address);
    let (_, port) = address.split('/').next()?.rsplit_once(':')?;
    port.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_every_engine_address_is_found() {
        assert_eq!(port_of("127.0.0.1:20001"), Some(20_001));
        assert_eq!(port_of("http://user:password@127.0.0.1:20002/hopline"), Some(20_002));
        let postgres = "postgres://user:password@127.0.0.1:20003/hopline?sslrootcert=/a:1/ca.pem";
        assert_eq!(port_of(postgres), Some(20_003));
    }
}
