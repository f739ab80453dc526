//! Several servers of ClickHouse: shards, each with replicas, which agree through ZooKeeper.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::start_at;
use crate::{Error, Options, Server, ports, zookeeper};

/// The name of the cluster in the servers' configuration.
pub const CLUSTER: &str = "hopline";

/// The address on which other servers reach a replica, at its port for HTTP.
const FOR_REPLICAS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The servers of a cluster.
#[derive(Debug)]
pub struct Cluster {
    /// What the replicas agree by.
    pub zookeeper: Server,
    /// By shard.
    pub shards: Vec<Vec<Server>>,
}

/// Where a server stands in its cluster.
#[derive(Debug, Clone)]
pub(super) struct Place {
    zookeeper: String,
    shard: usize,
    replica: usize,
    /// The port of the native protocol of each server, by shard.
    native: Vec<Vec<u16>>,
}

/// Starts as many shards with as many replicas each. `options` are those of a server, by its name: `zookeeper`, or
/// `clickhouse-1-2` for the second replica of the first shard.
///
/// # Errors
/// The reason why a server cannot be installed or started.
pub async fn start_cluster(
    shards: usize,
    replicas: usize,
    options: impl Fn(&str) -> Result<Options, Error>,
) -> Result<Cluster, Error> {
    let zookeeper = zookeeper::start(options("zookeeper")?).await?;
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

impl Place {
    /// Returns the server's name, such as `clickhouse-1-2`.
    pub(super) fn name(&self) -> String {
        format!("clickhouse-{}-{}", self.shard + 1, self.replica + 1)
    }

    /// Returns the port of the native protocol.
    pub(super) fn native(&self) -> u16 {
        self.native[self.shard][self.replica]
    }

    /// Returns the address for other servers.
    pub(super) fn for_replicas(port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(FOR_REPLICAS, port)
    }

    /// Returns the server's settings beyond those of a single one. `interserver` is its port for other servers, which
    /// the library takes from a patch instead.
    pub(super) fn settings(&self, password: &str, interserver: u16) -> String {
        let (host, port) = self.zookeeper.rsplit_once(':').unwrap_or_default();
        let user = super::NAME;
        let replica = |native: &u16| {
            format!(
                "<replica><host>127.0.0.1</host><port>{native}</port><user>{user}</user>\
                 <password>{password}</password></replica>"
            )
        };
        let shard = |natives: &Vec<u16>| {
            let replicas: String = natives.iter().map(replica).collect();
            format!("<shard><internal_replication>true</internal_replication>{replicas}</shard>")
        };
        let shards: String = self.native.iter().map(shard).collect();
        // sessions_path: by it a server knows its own former sessions; all of the library's have the same id.
        format!(
            "\
    <listen_host>{FOR_REPLICAS}</listen_host>
    <interserver_http_host>127.0.0.1</interserver_http_host>
    <interserver_http_port>{interserver}</interserver_http_port>
    <macros><shard>{shard}</shard><replica>{replica}</replica></macros>
    <remote_servers><{CLUSTER}>{shards}</{CLUSTER}></remote_servers>
    <zookeeper>
        <node><host>{host}</host><port>{port}</port></node>
        <session_timeout_ms>10000</session_timeout_ms>
        <operation_timeout_ms>5000</operation_timeout_ms>
        <sessions_path>/clickhouse/sessions/{name}</sessions_path>
    </zookeeper>
",
            shard = self.shard + 1,
            replica = self.replica + 1,
            name = self.name(),
        )
    }
}
