//! `bench redirect`: the edge with everything that it does for a click, against a constant redirect.

mod edge;
mod open;
mod report;
mod round;
pub(crate) mod tally;

use std::time::Duration;

use ::tests::deployment::Deployment;
use ::tests::engines::topics;
use ::tests::links;
pub(crate) use edge::Edge;
use edge::constant_round;
pub(crate) use report::CONNECTIONS;
pub(crate) use report::Report;

use crate::load::Load;
use crate::server::{Constant, stop};
use crate::statistics::Spread;
use crate::terminal::{prepare, report_progress};

/// Links that the visitors visit.
pub(crate) const LINKS: usize = 1_000;

/// How long each server is under load before the first round.
pub(crate) const WARM_UP: Duration = Duration::from_secs(3);

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
    let load = Load::visits(report::CONNECTIONS, &slugs);
    let constant = Constant::start(None).await?;
    let deployment = Deployment::prepare(engines.clone());
    let mut edge = Edge::start(&deployment, &slugs).await?;

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
