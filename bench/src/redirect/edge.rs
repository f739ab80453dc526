//! The running edge, and rounds under the closed load.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ::tests::deployment::Deployment;
use ::tests::metric;
use anyhow::Context as _;
use devstack::Server;
use devstack::readiness::until;

use super::round::{Round, Usage};
use crate::load::{Answers, Load};
use crate::server::{self, Constant, pid};

/// How long shipping the clicks of a round may take.
const DRAIN: Duration = Duration::from_secs(300);

/// The metric of the clicks that Kafka has confirmed.
const DELIVERED: &str = "hopline_clicks_delivered_total";

/// The running edge, and how many redirects it has answered in all.
pub(crate) struct Edge {
    pub(crate) server: Server,
    pub(super) address: SocketAddr,
    pub(crate) answered: u64,
}

impl Edge {
    /// Starts a deployment's edge, and waits until it knows these links.
    pub(crate) async fn start(deployment: &Deployment, slugs: &[String]) -> anyhow::Result<Self> {
        let server = server::start(&deployment.ingest).await?;
        // The topic has one partition, so the edge that knows the last link knows all.
        deployment.edge_knows(slugs.last().context("no links")?).await;
        Ok(Self { server, address: deployment.edge_address(), answered: 0 })
    }

    /// Runs a round, then waits until Kafka has every click, so that shipping does not slow the next round.
    ///
    /// The CPU time includes that wait: a click costs the same however late it is shipped.
    pub(crate) async fn round(&mut self, load: &Load, duration: Duration) -> anyhow::Result<Round> {
        let before = Usage::read(pid(&self.server)?)?;
        let answers = under_load(load, self.address, duration, "edge").await?;
        let ended = Instant::now();
        self.answered += answers.latencies.len();
        let waiting = self.answered.saturating_sub(self.delivered().await);
        self.all_shipped().await?;
        let drain = ended.elapsed();
        let usage = Usage::read(pid(&self.server)?)?.since(&before);
        Ok(Round::new(&answers, &usage).with_shipping(&usage, waiting, drain))
    }

    /// Waits until Kafka has confirmed every answered click.
    pub(super) async fn all_shipped(&self) -> anyhow::Result<()> {
        until("the shipping of every click", DRAIN, || async {
            let delivered = self.delivered().await;
            if delivered >= self.answered {
                Ok(())
            } else {
                Err(format!("Kafka has confirmed {delivered} of {} clicks", self.answered).into())
            }
        })
        .await?;
        Ok(())
    }

    /// Returns how many clicks Kafka has confirmed.
    async fn delivered(&self) -> u64 {
        metric(self.server.url(), DELIVERED).await as u64
    }
}

/// Runs a round of the constant.
pub(super) async fn constant_round(
    constant: &Constant,
    load: &Load,
    duration: Duration,
) -> anyhow::Result<Round> {
    let before = Usage::read(pid(&constant.server)?)?;
    let answers = under_load(load, constant.address, duration, "constant").await?;
    Ok(Round::new(&answers, &Usage::read(pid(&constant.server)?)?.since(&before)))
}

async fn under_load(
    load: &Load,
    server: SocketAddr,
    duration: Duration,
    name: &str,
) -> anyhow::Result<Answers> {
    load.closed(server, duration).await.with_context(|| format!("under load, {name}"))
}
