//! A processor inside the test's process.

use std::process::Stdio;
use std::time::Duration;

use clap::Parser as _;
use devstack::clickhouse::CLUSTER;
use processor::{Config, Program};
use schemas::grants::User;
use service::Shutdown;
use service::metrics::Metrics;
use tests::engines::Isolated;
use tests::readyz;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinHandle;

/// A running processor; a test stops it to check its result.
pub(crate) struct Processor {
    shutdown: Shutdown,
    /// The URL for operators.
    pub(crate) operations: String,
    run: JoinHandle<anyhow::Result<()>>,
}

/// The configuration of a processor on a test's engines.
pub(crate) fn config(isolated: &Isolated) -> Config {
    parse(isolated, &[]).config
}

fn parse(isolated: &Isolated, command: &[&str]) -> Program {
    let Isolated { kafka_brokers, topic_prefix, .. } = isolated;
    let clickhouse_url = &isolated.clickhouse_url_of(User::Processor);
    let engines = [
        "processor",
        "--kafka-brokers",
        kafka_brokers,
        "--topic-prefix",
        topic_prefix,
        "--clickhouse-url",
        clickhouse_url,
        "--audit-hours",
        "0",
    ];
    let cluster: &[&str] = if isolated.is_replicated() { &["--clickhouse-cluster", CLUSTER] } else { &[] };
    Program::try_parse_from(engines.iter().chain(cluster).chain(command)).unwrap()
}

/// Runs an operator's command and returns its answer.
pub(crate) async fn operate(isolated: &Isolated, command: &[&str]) -> anyhow::Result<serde_json::Value> {
    let Program { command, config } = parse(isolated, &[command, &["--json"]].concat());
    let answer = processor::operate(config, command.unwrap()).await?;
    Ok(serde_json::from_str(&answer.text)?)
}

/// The program on a test's engines.
pub(crate) fn program(isolated: &Isolated, command: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_processor"));
    program
        .args(command)
        .envs(isolated.variables_of(User::Processor))
        .stderr(Stdio::null())
        .kill_on_drop(true);
    program
}

impl Processor {
    /// Starts a processor with the default configuration.
    pub(crate) async fn start(isolated: &Isolated) -> Self {
        Self::start_with(config(isolated)).await
    }

    /// Starts a processor with this configuration.
    pub(crate) async fn start_with(config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let operations = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = Shutdown::new(Duration::from_secs(20));
        let metrics = Metrics::install("processor", processor::METRICS).unwrap();
        let run = tokio::spawn(processor::run(config, listener, metrics, shutdown.clone()));
        Self { shutdown, operations, run }
    }

    /// Stops it, and checks that it ended without an error and in time.
    pub(crate) async fn stop(self) {
        self.shutdown.request();
        let deadline = self.shutdown.deadline().unwrap();
        tokio::time::timeout_at(deadline, self.run).await.unwrap().unwrap().unwrap();
    }

    /// The answer of `/readyz`, with its status.
    pub(crate) async fn readiness(&self) -> (u16, serde_json::Value) {
        readyz(&self.operations).await
    }
}
