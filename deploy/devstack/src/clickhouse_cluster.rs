//! Several servers of ClickHouse.

use crate::clickhouse::{Place, start_at};
use crate::{Error, Options, Server, ports, zookeeper};

/// The servers of a cluster.
#[derive(Debug)]
pub struct Cluster {
    /// What the replicas agree by.
    pub zookeeper: Server,
    /// By shard.
    pub shards: Vec<Vec<Server>>,
}

/// Starts as many shards with as many replicas each. `options` are those of a server, by its name: `zookeeper-1`, or
/// `clickhouse-1-2` for the second replica of the first shard.
///
/// # Errors
/// The reason why a server cannot be installed or started.
pub async fn start_cluster(
    shards: usize,
    replicas: usize,
    options: impl Fn(&str) -> Result<Options, Error>,
) -> Result<Cluster, Error> {
    let zookeeper = zookeeper::start(options("zookeeper-1")?).await?;
    let native_ports = || (0..replicas).map(|_| ports::free()).collect::<Result<Vec<_>, _>>();
    let native = (0..shards).map(|_| native_ports()).collect::<Result<Vec<_>, _>>()?;
    let mut servers = Vec::new();
    for shard in 0..shards {
        let mut started = Vec::new();
        for replica in 0..replicas {
            let place =
                Place { zookeeper: zookeeper.url().to_owned(), shard, replica, native: native.clone() };
            started.push(start_at(options(&place.name())?, Some(&place)).await?);
        }
        servers.push(started);
    }
    Ok(Cluster { zookeeper, shards: servers })
}
