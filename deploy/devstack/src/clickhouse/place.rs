//! The settings of a server of ClickHouse in a cluster: shards, each with replicas, which agree through ZooKeeper.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::Options;

/// The name of the cluster in the servers' configuration.
pub const CLUSTER: &str = "hopline";

/// The address on which other servers reach a replica, at its port for HTTP.
const FOR_REPLICAS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Where a server stands in its cluster.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// ZooKeeper, as `host:port`.
    pub(crate) zookeeper: String,
    pub(crate) shard: usize,
    pub(crate) replica: usize,
    /// The port of the native protocol of each server, by shard.
    pub(crate) native: Vec<Vec<u16>>,
}

impl Place {
    /// Returns the server's name, such as `clickhouse-1-2`.
    pub(crate) fn name(&self) -> String {
        format!("clickhouse-{}-{}", self.shard + 1, self.replica + 1)
    }

    /// Returns the port of the native protocol.
    pub(crate) fn native(&self) -> u16 {
        self.native[self.shard][self.replica]
    }

    /// Returns the address for other servers.
    pub(crate) fn for_replicas(port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(FOR_REPLICAS, port)
    }

    /// Returns the server's settings beyond those of a single one. `interserver` is its port for other servers, which
    /// the library takes from a patch instead.
    pub(crate) fn settings(&self, user: &str, options: &Options, interserver: u16) -> String {
        let password = &options.password;
        // A replica that died stops others for as long: tests have no time for the usual 30 s.
        let session = if options.durable { 30_000 } else { 10_000 };
        let (host, port) = self.zookeeper.rsplit_once(':').unwrap_or_default();
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
        <session_timeout_ms>{session}</session_timeout_ms>
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
