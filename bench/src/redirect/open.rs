//! Both servers at half the constant's rate, by a load that does not wait for them.

use std::{fmt::Write as _, time::Duration};

use serde::Serialize;

use super::{
    Measured,
    report::{rates, spread},
    servers::Server,
};
use crate::{load::Load, paced, statistics::Spread, terminal::complain};

/// The part of the constant's rate that requests are sent at.
const SHARE: f64 = 0.5;

/// The largest ratio of the 99th percentiles that the edge is meant to have.
const TARGET: f64 = 1.5;

/// Latencies under the open load.
#[derive(Debug, Serialize)]
pub(super) struct Open {
    requests_per_second: f64,
    target: f64,
    /// The edge's 99th percentile in parts of the constant's, over the pairs of rounds.
    p99_ratio: Spread,
    constant: Vec<Round>,
    redirect: Vec<Round>,
}

/// One server for a while; microseconds.
#[derive(Debug, Serialize)]
struct Round {
    requests: usize,
    /// From when a request was due to its answer.
    p50_us: u32,
    p99_us: u32,
    p999_us: u32,
    max_us: u32,
    /// How late the load itself was, which is in all latencies above.
    load_late_p99_us: u32,
}

/// Lets the servers take turns.
pub(super) async fn measure(
    constant: &Server,
    edge: &mut Measured,
    load: &Load,
    closed_rate: f64,
    pairs: u32,
    duration: Duration,
) -> anyhow::Result<Open> {
    let rate = closed_rate * SHARE;
    let (mut constants, mut redirects) = (Vec::new(), Vec::new());
    for pair in 1..=pairs {
        let bare = round(constant, load, rate, duration).await?;
        let redirect = round(&edge.edge.server, load, rate, duration).await?;
        edge.answered += redirect.requests as u64;
        edge.is_shipped().await?;
        complain(&format!(
            "open load, pair {pair} of {pairs}: {rate:.0}/s, p99 of the constant {} us, of the redirect {} us",
            bare.p99_us, redirect.p99_us
        ));
        constants.push(bare);
        redirects.push(redirect);
    }
    let ratios =
        std::iter::zip(&redirects, &constants).map(|(of, to)| f64::from(of.p99_us) / f64::from(to.p99_us));
    let p99_ratio = rates(ratios.collect())?;
    Ok(Open {
        requests_per_second: rate,
        target: TARGET,
        p99_ratio,
        constant: constants,
        redirect: redirects,
    })
}

async fn round(server: &Server, load: &Load, rate: f64, duration: Duration) -> anyhow::Result<Round> {
    let latencies = paced::run(load, server.address(), rate, duration).await?;
    Ok(Round {
        requests: latencies.count(),
        p50_us: latencies.latency(500),
        p99_us: latencies.latency(990),
        p999_us: latencies.latency(999),
        max_us: latencies.latency(1000),
        load_late_p99_us: latencies.lateness(990),
    })
}

impl Open {
    pub(super) fn write(&self, out: &mut String) -> std::fmt::Result {
        let verdict = if self.p99_ratio.median <= TARGET { "reached" } else { "MISSED" };
        writeln!(
            out,
            "open load at {:.0}/s, half the constant's rate; from when a request was due",
            self.requests_per_second
        )?;
        writeln!(
            out,
            "  p99 ratio        {}   target at most {TARGET}: {verdict}",
            spread(self.p99_ratio, 3)
        )?;
        for (name, rounds) in [("constant 302", &self.constant), ("redirect", &self.redirect)] {
            let mut line = |what: &str, value: fn(&Round) -> u32| {
                Spread::of(rounds.iter().map(|round| f64::from(value(round)))).map_or(Ok(()), |values| {
                    writeln!(out, "  {:<29}{}", format!("{name}, {what}"), spread(values, 0))
                })
            };
            line("p50, us", |round| round.p50_us)?;
            line("p99, us", |round| round.p99_us)?;
            line("p99.9, us", |round| round.p999_us)?;
            line("max, us", |round| round.max_us)?;
            line("load late p99, us", |round| round.load_late_p99_us)?;
        }
        Ok(())
    }
}
