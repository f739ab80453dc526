//! `bench redirect`: the edge with all that it does for a click, against a server that does nothing.

mod open;
mod outage;
mod peers;
mod report;
pub(crate) mod servers;
mod sustained;
mod tally;
mod usage;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use devstack::readiness::until;
use report::{Beside, Report, Round, rates};
use servers::{Edge, Server};
use tests::{
    engines::{Isolated, topics},
    links,
};
use usage::Usage;

use crate::{
    load::{Answers, Load},
    prepare::prepare,
    terminal::{complain, say},
};

/// What both servers log, whatever our own environment says: log lines cost time.
pub(crate) const LOG_FILTER: &str = "info,librdkafka=warn,rdkafka=warn";

/// How many links the visitors ask for.
const LINKS: usize = 1_000;

/// How long the shipping of what a round has left may take.
const DRAIN: Duration = Duration::from_secs(300);

/// What is measured, and for how long.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Pairs of rounds: one of the constant, one of the edge
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Seconds of a round
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Seconds that each server is under load before the first round
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=3600))]
    warm_up: u32,
    /// Connections that are kept open, each with one request at a time
    #[arg(long, value_name = "COUNT", default_value = "32", value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// Seconds of the sustained load
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    sustained_seconds: u32,
    /// Leave something out, as a list with commas
    #[arg(long, value_name = "PARTS", value_enum, value_delimiter = ',')]
    skip: Vec<Part>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// What a run measures beside the pairs of rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Constant 302s of other servers, in the same rounds
    Peers,
    /// Latencies at half the constant's rate, under a load that does not wait for answers
    Open,
    /// Whether shipping keeps up with full load
    Sustained,
    /// The rate with Kafka stopped, on a Kafka of its own
    Outage,
}

/// Measures, checks that no click is missing, and prints the result.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    prepare(&["KAFKA_BROKERS"])?;
    let engines = topics().await;
    // The topics stay after a failure: the missing click is to be looked for there.
    let report = compare(&options, &engines).await?;
    engines.remove_topics().await;
    say(&if options.json { serde_json::to_string(&report)? } else { report.text() });
    Ok(())
}

async fn compare(options: &Options, engines: &Isolated) -> anyhow::Result<Report> {
    let slugs = links::publish(engines, LINKS);
    let load = Load::new(options.connections as usize, &slugs);
    let constant = Server::constant().await?;
    let mut edge = Measured { edge: Edge::start(engines).await?, answered: 0 };
    // One partition, in order: who knows the last link knows all.
    edge.edge.knows(slugs.last().context("no links")?).await?;

    let [warm_up, duration] =
        [options.warm_up, options.seconds].map(|seconds| Duration::from_secs(seconds.into()));
    let measures = |part| !options.skip.contains(&part);
    let mut peers = if measures(Part::Peers) { peers::start().await? } else { Vec::new() };
    constant_round(&constant, &load, warm_up).await?;
    edge.round(&load, warm_up).await?;
    for peer in &peers {
        answers(&peer.server, &load, warm_up).await?;
    }
    let (mut constants, mut redirects) = (Vec::new(), Vec::new());
    for pair in 1..=options.pairs {
        let constant = constant_round(&constant, &load, duration).await?;
        let redirect = edge.round(&load, duration).await?;
        complain(&format!(
            "pair {pair} of {}: constant {:.0}/s, redirect {:.0}/s, ratio {:.3}",
            options.pairs,
            constant.requests_per_second,
            redirect.requests_per_second,
            redirect.requests_per_second / constant.requests_per_second
        ));
        for peer in &mut peers {
            let answers = answers(&peer.server, &load, duration).await?;
            peer.requests_per_second.push(answers.rate());
            peer.latency_p99_us.push(answers.latency(99).into());
        }
        constants.push(constant);
        redirects.push(redirect);
    }
    let mut beside = Beside {
        peers: peers
            .iter()
            .filter_map(|peer| peer.peer(redirects.iter().map(|round| round.requests_per_second)))
            .collect(),
        ..Beside::default()
    };
    for peer in peers {
        peer.server.stop().await?;
    }
    if measures(Part::Open) {
        let rate = rates(constants.iter().map(|round| round.requests_per_second).collect())?.median;
        let open = open::measure(&constant, &mut edge, &load, rate, options.pairs, duration).await?;
        beside.open = Some(open);
    }
    if measures(Part::Sustained) {
        beside.sustained = Some(sustained::measure(&mut edge, &load, options.sustained_seconds).await?);
    }
    edge.edge.stop().await?;
    if measures(Part::Outage) {
        let connections = options.connections as usize;
        beside.outage = Some(outage::measure(&constant, connections, options.pairs, duration).await?);
    }
    constant.stop().await?;

    complain("reading the topic to its end");
    let clicks = tally::count(engines, edge.answered)?;
    Report::new(options, constants, redirects, clicks, beside)
}

/// The edge, and how many redirects it has answered in all.
struct Measured {
    edge: Edge,
    answered: u64,
}

impl Measured {
    /// Puts the edge under load, then waits until Kafka has every click, so that shipping does not slow the next round.
    ///
    /// Its CPU time is taken after that wait: a click costs the same however late it is shipped.
    async fn round(&mut self, load: &Load, duration: Duration) -> anyhow::Result<Round> {
        let edge = &self.edge;
        let begin = Usage::read(edge.server.pid()?)?;
        let answers = answers(&edge.server, load, duration).await?;
        let ended = Instant::now();
        self.answered += answers.count() as u64;
        let waiting = self.answered.saturating_sub(edge.delivered().await?);
        self.is_shipped().await?;
        let drain = ended.elapsed();
        let usage = Usage::read(edge.server.pid()?)?.since(&begin);
        Ok(Round::new(&answers, &usage).with_shipping(&usage, waiting, drain))
    }

    async fn is_shipped(&self) -> anyhow::Result<()> {
        until("the shipping of every click", DRAIN, || async {
            let delivered = self.edge.delivered().await?;
            if delivered >= self.answered {
                Ok(())
            } else {
                Err(format!("{delivered} of {} clicks are confirmed by Kafka", self.answered).into())
            }
        })
        .await?;
        Ok(())
    }
}

async fn constant_round(server: &Server, load: &Load, duration: Duration) -> anyhow::Result<Round> {
    let begin = Usage::read(server.pid()?)?;
    let answers = answers(server, load, duration).await?;
    Ok(Round::new(&answers, &Usage::read(server.pid()?)?.since(&begin)))
}

async fn answers(server: &Server, load: &Load, duration: Duration) -> anyhow::Result<Answers> {
    let answers =
        load.run(server.address(), duration).await.with_context(|| format!("under load, {server}"))?;
    ensure!(answers.count() > 0, "{server} answered nothing");
    Ok(answers)
}
