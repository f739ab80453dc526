//! The two servers, each a process of its own: the API as an operator runs it, and its limit.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use ::tests::engines::Isolated;
use anyhow::{Context as _, bail, ensure};
use devstack::{
    Probe, ports,
    process::{Launch, Stopped},
    scratch::Scratch,
};
use serde_json::Value;

use super::LOG_FILTER;

/// A running server. Killed on drop.
pub(crate) struct Server {
    process: devstack::Server,
    address: SocketAddr,
    program: PathBuf,
    environment: Vec<(String, String)>,
    // Declared after the process: the folder goes when nothing writes there any more.
    _folder: Scratch,
}

impl Server {
    /// Starts `api` with the settings that a deployment has.
    pub(crate) async fn api(engines: &Isolated) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?.with_file_name("api");
        ensure!(program.exists(), "{} is not there: build it in the same profile", program.display());
        Self::start("api", program, |address, operations| {
            let key = |byte: &str| byte.repeat(32);
            let variables = vec![
                ("KAFKA_BROKERS", engines.kafka_brokers.clone()),
                ("CLICKHOUSE_URL", engines.clickhouse_url.clone()),
                ("DATABASE_URL", engines.database_url.clone()),
                ("HOPLINE_TOPIC_PREFIX", engines.topic_prefix.clone()),
                ("HOPLINE_API_LISTEN", address),
                ("HOPLINE_API_OPERATIONS_LISTEN", operations),
                ("HOPLINE_PUBLIC_URL", "https://go.example.com".to_owned()),
                ("HOPLINE_CLICK_ID_KEYS", format!("1:{}", key("11"))),
                ("HOPLINE_SECRET_KEYS", format!("1:{}", key("22"))),
            ];
            (Vec::new(), variables)
        })
        .await
    }

    /// Starts a server that answers everything with so many bytes of JSON.
    pub(super) async fn constant(bytes: usize) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        Self::start("the constant JSON", program, |address, operations| {
            let bytes = bytes.to_string();
            let arguments = [
                "constant-json",
                "--listen",
                &address,
                "--operations-listen",
                &operations,
                "--bytes",
                &bytes,
            ];
            (arguments.map(str::to_owned).to_vec(), Vec::new())
        })
        .await
    }

    async fn start(
        name: &str,
        program: PathBuf,
        settings: impl FnOnce(String, String) -> (Vec<String>, Vec<(&'static str, String)>),
    ) -> anyhow::Result<Self> {
        let folder = Scratch::new("bench-api")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()?));
        let operations = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()?));
        let (arguments, variables) = settings(address.to_string(), operations.to_string());
        let environment: Vec<(String, String)> = std::iter::once(("RUST_LOG", LOG_FILTER.to_owned()))
            .chain(variables)
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let mut launch = Launch::new(&program, folder.path().join("log")).arguments(arguments);
        launch.environment.clone_from(&environment);
        let url = format!("http://{operations}");
        let process = devstack::Server::new(name, &url, launch, Probe::Http { url: format!("{url}/readyz") });
        process.start().await?;
        Ok(Self { process, address, program, environment, _folder: folder })
    }

    /// Where it answers.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs an operator's command beside the running server, and returns its answer.
    pub(super) async fn admin(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let output = tokio::process::Command::new(&self.program)
            .args(["admin", "--json"])
            .args(arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .output()
            .await
            .context("cannot run the operator's command")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "admin {}: {said}", arguments.join(" "));
        serde_json::from_slice(&output.stdout).context("the operator's command answers no JSON")
    }

    /// Stops it with SIGTERM, which must end it in good order.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let name = self.process.name();
        match self.process.stop().await {
            Some(Stopped::Ended(status)) if status.success() => Ok(()),
            Some(Stopped::Ended(status)) => bail!("{name} ended with {status}"),
            Some(Stopped::Killed) => bail!("{name} did not stop in time"),
            None => bail!("{name} ended before it was stopped"),
        }
    }
}
