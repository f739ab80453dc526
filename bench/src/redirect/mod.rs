//! `bench redirect`: the edge with everything that it does for a click, against a constant redirect.

mod open;
mod report;
mod tally;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ::tests::deployment::Deployment;
use ::tests::engines::topics;
use ::tests::links;
use anyhow::Context as _;
use devstack::Server;
use devstack::http::{accepted, client};
use devstack::readiness::until;
pub(crate) use report::Report;
use report::{Round, Usage};

use crate::load::{Answers, Load};
use crate::server::{Constant, pid, start, stop};
use crate::statistics::Spread;
use crate::terminal::{prepare, report_progress};

/// Links that the visitors visit.
const LINKS: usize = 1_000;

/// Connections of the load, each with one request at a time.
const CONNECTIONS: usize = 32;

/// How long each server is under load before the first round.
const WARM_UP: Duration = Duration::from_secs(3);

/// How long a link may take from its topic to the edge.
const LINK_DEADLINE: Duration = Duration::from_secs(30);

/// How long shipping the clicks of a round may take.
const DRAIN: Duration = Duration::from_secs(300);

/// The metric of the clicks that Kafka has confirmed.
const DELIVERED: &str = "hopline_clicks_delivered_total";

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Pairs of rounds: one of the constant, one of the edge
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Seconds of a round
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
}

/// Measures, and checks that no click is missing.
pub(crate) async fn run(options: Options) -> anyhow::Result<Report> {
    prepare(&["KAFKA_BROKERS"])?;
    let engines = topics().await;
    let slugs = links::publish(&engines, LINKS);
    let load = Load::visits(CONNECTIONS, &slugs);
    let constant = Constant::start(None).await?;
    let deployment = Deployment::prepare(engines.clone());
    let server = start(&deployment.ingest).await?;
    let mut edge = Edge { server, address: deployment.edge_address(), answered: 0 };
    // The topic has one partition, so the edge that knows the last link knows all.
    edge.knows(&deployment, slugs.last().context("no links")?).await?;

    let duration = Duration::from_secs(options.seconds.into());
    constant_round(&constant, &load, WARM_UP).await?;
    edge.round(&load, WARM_UP).await?;
    let (mut constants, mut redirects) = (Vec::new(), Vec::new());
    for pair in 1..=options.pairs {
        let constant = constant_round(&constant, &load, duration).await?;
        let redirect = edge.round(&load, duration).await?;
        let (limit, rate) = (constant.requests_per_second, redirect.requests_per_second);
        report_progress(&format!(
            "pair {pair} of {}: constant {limit:.0}/s, redirect {rate:.0}/s, ratio {:.3}",
            options.pairs,
            rate / limit
        ));
        constants.push(constant);
        redirects.push(redirect);
    }
    let rate = Spread::of(constants.iter().map(|round| round.requests_per_second))?.median;
    let open = open::measure(&constant, &mut edge, &load, rate, options.pairs, duration).await?;
    stop(&edge.server).await?;
    stop(&constant.server).await?;

    report_progress("reading the topic to its end");
    let clicks = tally::count(&engines, edge.answered)?;
    // After a failure the topics stay, to look for the missing click.
    engines.remove_topics().await;
    Report::new(constants, redirects, clicks, open)
}

/// The running edge, and how many redirects it has answered in all.
struct Edge {
    server: Server,
    address: SocketAddr,
    answered: u64,
}

impl Edge {
    /// Waits until a link redirects.
    async fn knows(&self, deployment: &Deployment, slug: &str) -> anyhow::Result<()> {
        until("the last link", LINK_DEADLINE, || async {
            let status = deployment.head(slug).await?;
            if status == 302 { Ok(()) } else { Err(status.to_string().into()) }
        })
        .await?;
        Ok(())
    }

    /// Runs a round, then waits until Kafka has every click, so that shipping does not slow the next round.
    ///
    /// The CPU time includes that wait: a click costs the same however late it is shipped.
    async fn round(&mut self, load: &Load, duration: Duration) -> anyhow::Result<Round> {
        let before = Usage::read(pid(&self.server)?)?;
        let answers = under_load(load, self.address, duration, "edge").await?;
        let ended = Instant::now();
        self.answered += answers.latencies.len();
        let waiting = self.answered.saturating_sub(self.delivered().await?);
        self.all_shipped().await?;
        let drain = ended.elapsed();
        let usage = Usage::read(pid(&self.server)?)?.since(&before);
        Ok(Round::new(&answers, &usage).with_shipping(&usage, waiting, drain))
    }

    async fn all_shipped(&self) -> anyhow::Result<()> {
        until("the shipping of every click", DRAIN, || async {
            let delivered = self.delivered().await?;
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
    async fn delivered(&self) -> anyhow::Result<u64> {
        let url = format!("{}/metrics", self.server.url());
        let client = client().map_err(anyhow::Error::from_boxed)?;
        let page = accepted(client.get(url).send().await?).await.map_err(anyhow::Error::from_boxed)?;
        counter(&page, DELIVERED).with_context(|| format!("metric {DELIVERED} is missing"))
    }
}

async fn constant_round(constant: &Constant, load: &Load, duration: Duration) -> anyhow::Result<Round> {
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

/// Returns the sum of a counter's series on a page of metrics in Prometheus' text format.
fn counter(page: &str, name: &str) -> Option<u64> {
    let series = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']))?;
        rest.rsplit_once(' ')?.1.parse::<u64>().ok()
    });
    series.fold(None, |sum, value| Some(sum.unwrap_or_default() + value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_the_sum_of_its_own_series() {
        let page = "# TYPE clicks_total counter\nclicks_total{class=\"human\"} 7\nclicks_total{class=\"bot\"} 2\n\
                    clicks_total_other 100\nplain_total 3\n";
        assert_eq!(counter(page, "clicks_total"), Some(9));
        assert_eq!(counter(page, "plain_total"), Some(3));
        assert_eq!(counter(page, "absent_total"), None);
    }
}
