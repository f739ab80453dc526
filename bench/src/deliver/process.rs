//! The dispatcher, as an operator runs it, and the receiver of its requests; each a process of its own.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use ::tests::engines::{Isolated, http_client};
use anyhow::{Context as _, ensure};
use devstack::{ports, readiness::until};

use super::{LOG_FILTER, receiver::Statistics, stage::SECRET_KEYS};
use crate::child::{self, Child};

/// How long a round may take.
const DEADLINE: Duration = Duration::from_secs(900);

/// The running dispatcher.
pub(super) struct Dispatcher(Child);

impl Dispatcher {
    /// Starts it on these engines, allowed to reach this machine.
    pub(super) async fn start(engines: &Isolated) -> anyhow::Result<Self> {
        let program = child::beside("dispatcher")?;
        let operations = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()?));
        let environment = vec![
            ("RUST_LOG", LOG_FILTER.to_owned()),
            ("KAFKA_BROKERS", engines.kafka_brokers.clone()),
            ("DATABASE_URL", engines.database_url.clone()),
            ("HOPLINE_TOPIC_PREFIX", engines.topic_prefix.clone()),
            ("HOPLINE_DISPATCHER_OPERATIONS_LISTEN", operations.to_string()),
            ("HOPLINE_PUBLIC_URL", "https://go.example.com".to_owned()),
            ("HOPLINE_SECRET_KEYS", SECRET_KEYS.to_owned()),
            ("HOPLINE_WEBHOOK_ALLOW", "127.0.0.0/8".to_owned()),
        ];
        let url = format!("http://{operations}");
        Child::start("dispatcher", program, vec![], environment, (&url, "/readyz")).await.map(Self)
    }

    /// The most memory that it has had, in bytes.
    pub(super) fn peak_memory(&self) -> anyhow::Result<u64> {
        self.0.peak_memory()
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.0.stop().await
    }
}

/// The running receiver.
pub(super) struct Receiver {
    child: Child,
    url: String,
}

impl Receiver {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()?));
        let arguments = vec!["receive".to_owned(), "--listen".to_owned(), address.to_string()];
        let url = format!("http://{address}");
        let child = Child::start("receiver", program, arguments, vec![], (&url, "/statistics")).await?;
        Ok(Self { child, url })
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Forgets every request so far.
    pub(super) async fn reset(&self) -> anyhow::Result<()> {
        http_client().get(self.url("/reset")).send().await?.error_for_status()?;
        Ok(())
    }

    pub(super) async fn statistics(&self) -> anyhow::Result<Statistics> {
        Ok(http_client().get(self.url("/statistics")).send().await?.json().await?)
    }

    /// How long after its event each request came, in milliseconds.
    pub(super) async fn latencies_ms(&self) -> anyhow::Result<Vec<u32>> {
        Ok(http_client().get(self.url("/latencies")).send().await?.json().await?)
    }

    /// Waits until it has so many requests.
    pub(super) async fn received(&self, wanted: usize) -> anyhow::Result<()> {
        until("every request", DEADLINE, || async {
            match self.statistics().await?.received {
                received if received >= wanted as u64 => Ok(()),
                received => Err(format!("{received} of {wanted} requests").into()),
            }
        })
        .await?;
        Ok(())
    }

    /// Requests per second, from the first to the last.
    pub(super) async fn rate(&self) -> anyhow::Result<f64> {
        let statistics = self.statistics().await?;
        ensure!(statistics.seconds > 0.0, "there was no time between the first request and the last");
        Ok(statistics.received as f64 / statistics.seconds)
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.child.stop().await
    }
}
