//! The programs of a run, each a separate process.

use std::path::Path;

use anyhow::{Context as _, bail};
use devstack::process::{Launch, Memory, Stopped};
use devstack::scratch::Scratch;
use devstack::{Probe, Server, ports};

/// The log filter of every measured program: log lines cost time.
pub(crate) const LOG_FILTER: &str = "warn,librdkafka=warn,rdkafka=warn";

/// Starts a program of a deployment with [`LOG_FILTER`], and waits until it is ready.
pub(crate) async fn start(prepared: &Server) -> anyhow::Result<Server> {
    start_as(prepared, &prepared.launch().program).await
}

/// The same with another program in its place.
pub(crate) async fn start_as(prepared: &Server, program: &Path) -> anyhow::Result<Server> {
    let mut launch = prepared.launch().clone();
    launch.program = program.to_owned();
    launch.environment.push(("RUST_LOG".to_owned(), LOG_FILTER.to_owned()));
    launch_at(prepared.name(), prepared.url(), launch).await
}

async fn launch_at(name: &str, url: &str, launch: Launch) -> anyhow::Result<Server> {
    let server = Server::new(name, url, launch, Probe::Http { url: format!("{url}/readyz") });
    server.start().await?;
    Ok(server)
}

/// A server with a constant answer. Killed on drop.
pub(crate) struct Constant {
    pub(crate) server: Server,
    /// Where it answers.
    pub(crate) address: std::net::SocketAddr,
    // Declared after the process, which writes its log there.
    _folder: Scratch,
}

impl Constant {
    /// Starts a server that answers with a redirect, or with this number of bytes of JSON.
    pub(crate) async fn start(json_bytes: Option<usize>) -> anyhow::Result<Self> {
        let folder = Scratch::new("bench")?;
        let [address, operations] = [ports::free()?, ports::free()?].map(|port| format!("127.0.0.1:{port}"));
        let mut arguments = vec!["constant".to_owned(), format!("--listen={address}")];
        arguments.push(format!("--operations-listen={operations}"));
        arguments.extend(json_bytes.map(|bytes| format!("--json-bytes={bytes}")));
        let program = std::env::current_exe().context("cannot find this program")?;
        let launch = Launch::new(program, folder.path().join("log")).arguments(arguments);
        let server = launch_at("constant", &format!("http://{operations}"), launch).await?;
        Ok(Self { server, address: address.parse()?, _folder: folder })
    }
}

/// Returns the process id of a running server.
pub(crate) fn pid(server: &Server) -> anyhow::Result<u32> {
    server.pid().with_context(|| format!("{} has ended", server.name()))
}

/// Returns the largest resident memory of a running server so far, in MiB.
pub(crate) fn peak_mib(server: &Server) -> anyhow::Result<u64> {
    Ok(Memory::of(pid(server)?)?.peak >> 20)
}

/// Stops a server with SIGTERM.
///
/// # Errors
/// When it does not exit in time with 0.
pub(crate) async fn stop(server: &Server) -> anyhow::Result<()> {
    let name = server.name();
    match server.stop().await {
        Some(Stopped::Ended(status)) if status.success() => Ok(()),
        Some(Stopped::Ended(status)) => bail!("{name} exited with {status}"),
        Some(Stopped::Killed) => bail!("{name} did not stop in time"),
        None => bail!("{name} exited before it was stopped"),
    }
}
