//! The edge with Kafka stopped, against the same edge before.

use std::{fmt::Write as _, time::Duration};

use ::tests::{engines::topics_on, links};
use anyhow::Context as _;
use devstack::{Options, kafka};
use serde::Serialize;

use super::{
    LINKS, Measured, answers,
    report::{rates, spread},
    servers::{Edge, Server},
    tally::{self, Clicks},
};
use crate::{load::Load, statistics::Spread, terminal::complain};

/// The least part of its rate that the edge is meant to keep.
const TARGET: f64 = 0.9;

/// Rates with Kafka and without; requests per second.
#[derive(Debug, Serialize)]
pub(super) struct Outage {
    target: f64,
    /// What is left of the edge's rate, by the medians of the rounds.
    ratio: f64,
    /// The same in parts of the constant, which was measured beside: a Kafka that is stopped needs no processor.
    ratio_to_constant: f64,
    with_kafka: Rates,
    without_kafka: Rates,
    /// The clicks of this edge alone.
    clicks: Clicks,
}

#[derive(Debug, Serialize)]
struct Rates {
    redirect: Spread,
    redirect_p99_us: Spread,
    constant: Spread,
}

/// Starts a Kafka and an edge, measures, stops the Kafka, measures again, and looks that every click arrives.
pub(super) async fn measure(
    constant: &Server,
    connections: usize,
    pairs: u32,
    duration: Duration,
) -> anyhow::Result<Outage> {
    complain("starting a Kafka that may be stopped");
    // Durable, that is with the optimising compiler: a slow Kafka would flatter the rates without it.
    let mut options = Options::throw_away("kafka")?;
    options.durable = true;
    let kafka = kafka::start(options).await?;
    let engines = topics_on(kafka.url()).await;
    let slugs = links::publish(&engines, LINKS);
    let load = Load::new(connections, &slugs);
    let mut edge = Measured { edge: Edge::start(&engines).await?, answered: 0 };
    edge.edge.knows(slugs.last().context("no links")?).await?;
    edge.round(&load, duration).await?;

    let with_kafka = rounds(constant, &mut edge, &load, pairs, duration, "with Kafka").await?;
    kafka.stop().await;
    let without_kafka = rounds(constant, &mut edge, &load, pairs, duration, "without Kafka").await?;
    kafka.start().await?;
    complain("Kafka is back; waiting until every click is there");
    edge.is_shipped().await?;
    edge.edge.stop().await?;
    let clicks = tally::count(&engines, edge.answered)?;
    kafka.stop().await;

    let ratio = without_kafka.redirect.median / with_kafka.redirect.median;
    let ratio_to_constant = ratio * with_kafka.constant.median / without_kafka.constant.median;
    Ok(Outage { target: TARGET, ratio, ratio_to_constant, with_kafka, without_kafka, clicks })
}

async fn rounds(
    constant: &Server,
    edge: &mut Measured,
    load: &Load,
    pairs: u32,
    duration: Duration,
    when: &str,
) -> anyhow::Result<Rates> {
    let (mut constants, mut redirects, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 1..=pairs {
        let bare = answers(constant, load, duration).await?;
        let redirect = answers(&edge.edge.server, load, duration).await?;
        edge.answered += redirect.count() as u64;
        complain(&format!("{when}, pair {pair} of {pairs}: redirect {:.0}/s", redirect.rate()));
        constants.push(bare.rate());
        latencies.push(f64::from(redirect.latency(99)));
        redirects.push(redirect.rate());
    }
    Ok(Rates { redirect: rates(redirects)?, redirect_p99_us: rates(latencies)?, constant: rates(constants)? })
}

impl Outage {
    pub(super) fn write(&self, out: &mut String) -> std::fmt::Result {
        let verdict = if self.ratio >= TARGET { "reached" } else { "MISSED" };
        writeln!(out, "redirect without Kafka / with Kafka")?;
        writeln!(out, "  ratio            {:>9.3}   target {TARGET}: {verdict}", self.ratio)?;
        writeln!(out, "  to the constant  {:>9.3}", self.ratio_to_constant)?;
        for (name, rates) in [("with Kafka", &self.with_kafka), ("without Kafka", &self.without_kafka)] {
            writeln!(out, "  {:<29}{}", format!("{name}, requests/s"), spread(rates.redirect, 0))?;
            writeln!(out, "  {:<29}{}", "  constant beside", spread(rates.constant, 0))?;
            writeln!(out, "  {:<29}{}", "  p99, us", spread(rates.redirect_p99_us, 0))?;
        }
        writeln!(out, "  clicks: {}", self.clicks)
    }
}
