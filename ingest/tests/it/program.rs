//! The program `ingest` as a process that can be killed, and a broker that can be stopped.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use schemas::message::Link;
use schemas::topic;
use tests::engines::Isolated;
use tests::{eventually, free_address, metric, readyz};

use crate::edge::{KEY, answers, live, publish_to};

/// A broker that can be stopped. The real one is shared with other tests.
pub(crate) struct Broker {
    pub(crate) cluster: MockCluster<'static, DefaultProducerContext>,
}

impl Broker {
    pub(crate) fn start(link: &Link) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(topic::LINKS.name, 1, 1).unwrap();
        cluster.create_topic(topic::CLICKS.name, topic::CLICKS.partitions, 1).unwrap();
        let broker = Self { cluster };
        publish_to(&broker.client(), topic::LINKS.name, &[live(link)]);
        broker
    }

    pub(crate) fn address(&self) -> String {
        self.cluster.bootstrap_servers()
    }

    pub(crate) fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.address());
        config
    }

    /// Returns the broker in the form that the test harness reads topics from.
    pub(crate) fn isolated(&self) -> Isolated {
        Isolated {
            kafka_brokers: self.address(),
            topic_prefix: String::new(),
            clickhouse_url: String::new(),
            other_clickhouse: Vec::new(),
            database_url: String::new(),
            other_postgres: None,
            has_users: false,
            databases: Vec::new(),
        }
    }
}

/// A running `ingest`, killed when the test ends.
pub(crate) struct Program {
    child: Child,
    pub(crate) address: SocketAddr,
    operations: SocketAddr,
}

impl Program {
    /// Starts `command`, which executes `ingest`, with the required variables and `variables`.
    pub(crate) async fn start(
        mut command: Command,
        broker: &Broker,
        spool: &Path,
        variables: &[(&str, &str)],
    ) -> Self {
        let [address, operations] = [free_address(), free_address()];
        let child = command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("KAFKA_BROKERS", broker.address())
            .env("HOPLINE_EDGE_LISTEN", address.to_string())
            .env("HOPLINE_INGEST_OPERATIONS_LISTEN", operations.to_string())
            .env("HOPLINE_CLICK_ID_KEYS", format!("1:{KEY}"))
            .env("HOPLINE_VISITOR_KEY", KEY)
            .env("HOPLINE_SPOOL_DIR", spool)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let program = Self { child, address, operations };
        answers(address, "/s", 302).await;
        program
    }

    /// Returns a command for the program without arguments.
    pub(crate) fn bare() -> Command {
        Command::new(env!("CARGO_BIN_EXE_ingest"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the program with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns the value of a metric without labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        metric(&format!("http://{}", self.operations), name).await
    }

    /// Returns whether a check of `/readyz` is ready, and its detail.
    pub(crate) async fn check(&self, name: &str) -> (bool, String) {
        let (_, report) = readyz(&format!("http://{}", self.operations)).await;
        let check = &report["checks"][name];
        (check["ready"].as_bool().unwrap(), check["detail"].as_str().unwrap().to_owned())
    }

    /// Waits until a check is ready.
    pub(crate) async fn is_ready(&self, name: &str) {
        eventually(&format!("{name} is ready"), async || match self.check(name).await {
            (true, _) => Ok(()),
            (false, detail) => Err(detail),
        })
        .await;
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
