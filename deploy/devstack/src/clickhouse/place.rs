//! The settings of a server of ClickHouse in a cluster: shards, each with replicas, which agree through ZooKeeper.

use std::net::Ipv4Addr;

use crate::libchdb::INTERSERVER;
use crate::{Options, Tls};

/// The name of the cluster in the servers' configuration.
pub const CLUSTER: &str = "hopline";

/// The address for clients, and for the native protocol also of other servers.
pub(super) const FOR_CLIENTS: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The address on which other servers reach a replica, at its port for HTTP.
pub(super) const FOR_REPLICAS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Returns the settings of TLS, of the server and of what it connects to.
pub(super) fn open_ssl(tls: &Tls) -> String {
    let (ca, own) = (tls.ca.display(), tls.server.display());
    let own = format!("<certificateFile>{own}</certificateFile><privateKeyFile>{own}</privateKeyFile>");
    format!(
        "\
    <openSSL>
        <server>{own}<verificationMode>none</verificationMode></server>
        <client>
            {own}<caConfig>{ca}</caConfig><loadDefaultCAFile>false</loadDefaultCAFile>
            <verificationMode>strict</verificationMode>
            <invalidCertificateHandler><name>RejectCertificateHandler</name></invalidCertificateHandler>
        </client>
    </openSSL>
"
    )
}

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

    /// Returns the server's settings beyond those of a single one. `interserver` is its port for other servers, which
    /// the library takes from a patch instead.
    pub(crate) fn settings(&self, options: &Options, interserver: u16) -> String {
        let password = &options.password;
        // A replica that died stops others for as long: tests have no time for the usual 30 s.
        let session = if options.durable { 30_000 } else { 10_000 };
        let (secure, interserver_port) = match options.tls {
            Some(_) => ("<secure>1</secure>", "interserver_https_port"),
            None => ("", "interserver_http_port"),
        };
        let (host, port) = self.zookeeper.rsplit_once(':').unwrap_or_default();
        let replica = |native: &u16| {
            format!("<replica><host>{FOR_CLIENTS}</host><port>{native}</port>{secure}</replica>")
        };
        let shard = |natives: &Vec<u16>| {
            let replicas: String = natives.iter().map(replica).collect();
            format!("<shard><internal_replication>true</internal_replication>{replicas}</shard>")
        };
        let shards: String = self.native.iter().map(shard).collect();
        // secret: a server runs a query of another one as the user who sent it. sessions_path: by it a server knows its
        // own former sessions; all of the library's have the same id.
        format!(
            "\
    <interserver_http_host>{FOR_CLIENTS}</interserver_http_host>
    <{interserver_port}>{interserver}</{interserver_port}>
    <interserver_http_credentials><user>{INTERSERVER}</user><password>{password}</password></interserver_http_credentials>
    <macros><shard>{shard}</shard><replica>{replica}</replica></macros>
    <remote_servers><{CLUSTER}><secret>{password}</secret>{shards}</{CLUSTER}></remote_servers>
    <zookeeper>
        <node><host>{host}</host><port>{port}</port>{secure}</node>
        <identity>{INTERSERVER}:{password}</identity>
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
