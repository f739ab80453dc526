//! Both servers under an open load, at half the constant's rate.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use super::edge::Edge;
use crate::load::Load;
use crate::server::Constant;
use crate::statistics::Spread;
use crate::terminal::report_progress;

/// The rate of requests in parts of the constant's closed rate.
const SHARE: f64 = 0.5;

/// The largest allowed ratio of the 99th percentiles.
const TARGET: f64 = 1.5;

/// Latencies under the open load.
#[derive(Debug, Serialize)]
pub(super) struct Open {
    requests_per_second: f64,
    target: f64,
    /// The edge's 99th percentile in parts of the constant's, pair by pair.
    p99_ratio: Spread,
    constant: Vec<Round>,
    redirect: Vec<Round>,
}

/// One server for a while; microseconds from when a request was due to its answer.
#[derive(Debug, Serialize)]
struct Round {
    requests: u64,
    p50_us: u64,
    p99_us: u64,
    /// The 99th percentile of the load's own delay, which all latencies include.
    load_late_p99_us: u64,
}

/// Measures both servers in turns.
pub(super) async fn measure(
    constant: &Constant,
    edge: &mut Edge,
    load: &Load,
    closed_rate: f64,
    pairs: u32,
    duration: Duration,
) -> anyhow::Result<Open> {
    let rate = closed_rate * SHARE;
    let (mut constants, mut redirects) = (Vec::new(), Vec::new());
    for pair in 1..=pairs {
        let limit = round(constant.address, load, rate, duration).await?;
        let redirect = round(edge.address, load, rate, duration).await?;
        edge.answered += redirect.requests;
        edge.all_shipped().await?;
        report_progress(&format!(
            "open load, pair {pair} of {pairs}: {rate:.0}/s, p99 of the constant {} us, of the redirect {} us",
            limit.p99_us, redirect.p99_us
        ));
        constants.push(limit);
        redirects.push(redirect);
    }
    let p99_ratio = Spread::of_ratios(&redirects, &constants, |round| round.p99_us as f64)?;
    Ok(Open {
        requests_per_second: rate,
        target: TARGET,
        p99_ratio,
        constant: constants,
        redirect: redirects,
    })
}

async fn round(server: SocketAddr, load: &Load, rate: f64, duration: Duration) -> anyhow::Result<Round> {
    let [latencies, delays] = load.open(server, rate, duration).await?;
    Ok(Round {
        requests: latencies.len(),
        p50_us: latencies.value_at_quantile(0.5),
        p99_us: latencies.value_at_quantile(0.99),
        load_late_p99_us: delays.value_at_quantile(0.99),
    })
}

impl Open {
    /// Returns lines for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self { requests_per_second, p99_ratio, constant, redirect, .. } = self;
        let mut lines = vec![format!("open load at {requests_per_second:.0}/s, from when a request was due")];
        let verdict = if p99_ratio.median <= TARGET { "reached" } else { "MISSED" };
        lines.push(format!("  p99 ratio        {}   target at most {TARGET}: {verdict}", p99_ratio.text(3)));
        for (name, rounds) in [("constant 302", constant), ("redirect", redirect)] {
            for Round { p50_us, p99_us, load_late_p99_us, .. } in rounds {
                lines.push(format!(
                    "  {name:<13} p50 {p50_us} us, p99 {p99_us} us, load late p99 {load_late_p99_us} us"
                ));
            }
        }
        lines
    }
}
