//! ZooKeeper as one node, from its jars: what replicas of ClickHouse agree by. With TLS it wants its clients'
//! certificates.

use std::fs;

use crate::process::Launch;
use crate::{Error, Options, Probe, Server, Tls, ports, private, programs};

/// Starts a server and waits until it answers; its URL is `host:port`.
///
/// # Errors
/// The reason why it cannot be installed or started.
pub async fn start(options: Options) -> Result<Server, Error> {
    let java = programs::java()?;
    let classes = options.cache.zookeeper().await?.join("*");
    let folder = &options.folder;
    private::create_folder(folder)?;
    let port = ports::prefer(options.port)?;
    let config = folder.join("zoo.cfg");
    fs::write(&config, settings(&options, port)).map_err(Error::file("write", &config))?;
    let launch = Launch::new(java, options.log)
        .arguments(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
        .arguments([classes.into_os_string()])
        .arguments(["org.apache.zookeeper.server.ZooKeeperServerMain".into(), config.into_os_string()]);
    let address = format!("127.0.0.1:{port}");
    let probe = Probe::ZooKeeper { address: address.clone(), tls: options.tls };
    Server::start_engine(&options.name, &address, launch, probe, options.scratch).await
}

fn settings(options: &Options, port: u16) -> String {
    let listener = match &options.tls {
        Some(Tls { ca, server }) => format!(
            "\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={port}
secureClientPortAddress=127.0.0.1
ssl.keyStore.location={}
ssl.trustStore.location={}
ssl.clientAuth=need
",
            server.display(),
            ca.display()
        ),
        None => format!("clientPort={port}\nclientPortAddress=127.0.0.1\n"),
    };
    // Clients may ask for sessions of up to 20 ticks.
    format!(
        "\
tickTime=2000
dataDir={}
{listener}admin.enableServer=false
4lw.commands.whitelist=srvr
",
        options.folder.join("data").display()
    )
}
